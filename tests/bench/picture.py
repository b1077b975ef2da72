# SPDX-License-Identifier: GPL-2.0-only
"""Bars as a picture in SVG, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

# Pixels: the picture, its margin, a column's words, the longest bar, and the text behind it.
WIDTH, MARGIN = 960, 16
WORDS, BAR, TEXT = 148, 100, 52
COLUMNS = 3
# From one bar, or one row's end, to the next; and the height of a bar.
PITCH, GAP, THICK = 10, 7, 7
# Of the title and the note; of the line of arms.
TITLE, LEGEND = 44, 20
HEADING = 20


@dataclass(frozen=True)
class Arm:
    """The words for an arm, and its fill on a light page and on a dark one."""

    words: str
    light: str
    dark: str


@dataclass(frozen=True)
class Bar:
    """The bar of an arm: its part of the longest one, 0 to 1, and the text behind it."""

    arm: str
    part: float
    text: str
    # Shown where the pointer is.
    about: str


@dataclass(frozen=True)
class Row:
    """The bars of a row; without any, its words are a heading."""

    words: str
    bars: tuple[Bar, ...] = ()

    @property
    def height(self) -> int:
        """In pixels."""
        return PITCH * len(self.bars) + GAP if self.bars else HEADING


def _style(arms: Collection[Arm]) -> str:
    """The colours: those of the page's background are in the picture, too."""
    light = "".join(f".arm{number}{{fill:{arm.light}}}" for number, arm in enumerate(arms))
    dark = "".join(f".arm{number}{{fill:{arm.dark}}}" for number, arm in enumerate(arms))
    return ("<style>text{font-family:sans-serif;font-size:11px;fill:#1f2328}"
            ".title{font-size:15px;font-weight:bold}.head{font-weight:bold}"
            ".note,.value{fill:#59636e}.value{font-size:9px}"
            f".page{{fill:#ffffff;stroke:#d1d9e0}}{light}\n"
            "@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.note,.value{fill:#9198a1}"
            f".page{{fill:#0d1117;stroke:#3d444d}}{dark}}}</style>")


def _columns(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in columns of about the same height; a heading is not the last row of one."""
    limit = sum(row.height for row in rows) / COLUMNS
    columns: list[list[Row]] = [[]]
    done = 0
    for number, row in enumerate(rows):
        # A heading goes with the row after it.
        kept = sum(one.height for one in rows[number:number + (1 if row.bars else 2)])
        if columns[-1] and columns[-1][-1].bars and len(columns) < COLUMNS \
                and done + kept / 2 > limit * len(columns):
            columns.append([])
        columns[-1].append(row)
        done += row.height
    return columns


def _row(row: Row, left: int, top: int, arms: Sequence[str]) -> list[str]:
    """The marks of a row."""
    if not row.bars:
        return [f'<text class="head" x="{left}" y="{top + 12}">{escape(row.words)}</text>']
    middle = top + (PITCH * len(row.bars)) // 2 + 3
    made = [f'<text x="{left}" y="{middle}">{escape(row.words)}</text>']
    for number, bar in enumerate(row.bars):
        y, start = top + PITCH * number, left + WORDS
        # A bar that is too short to see is a line.
        width = max(1.0, BAR * bar.part)
        made += [f'<rect class="arm{arms.index(bar.arm)}" x="{start}" y="{y}" '
                 f'width="{width:.1f}" height="{THICK}"><title>{escape(bar.about)}</title></rect>',
                 f'<text class="value" x="{start + width + 4:.1f}" y="{y + THICK}">'
                 f'{escape(bar.text)}</text>']
    return made


def draw(title: str, note: str, arms: dict[str, Arm], rows: Sequence[Row]) -> str:
    """The picture; ARMS by their names in Bar."""
    columns = _columns(rows)
    top = MARGIN + TITLE + LEGEND
    height = top + max(sum(row.height for row in column) for column in columns) + MARGIN
    names = list(arms)
    marks = [f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" '
             'rx="6"/>',
             f'<text class="title" x="{MARGIN}" y="{MARGIN + 13}">{escape(title)}</text>',
             f'<text class="note" x="{MARGIN}" y="{MARGIN + 31}">{escape(note)}</text>']
    left = MARGIN
    for number, arm in enumerate(arms.values()):
        y = MARGIN + TITLE
        marks += [f'<rect class="arm{number}" x="{left}" y="{y}" width="10" height="10"/>',
                  f'<text x="{left + 15}" y="{y + 9}">{escape(arm.words)}</text>']
        left += 40 + 7 * len(arm.words)
    for number, column in enumerate(columns):
        left, y = MARGIN + number * (WORDS + BAR + TEXT + 10), top
        for row in column:
            marks += _row(row, left, y, names)
            y += row.height
    return ("<!-- SPDX-License-Identifier: GPL-2.0-only -->\n"
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}">\n<title>{escape(title)}</title>\n'
            + "\n".join([_style(arms.values()), *marks]) + "\n</svg>\n")
