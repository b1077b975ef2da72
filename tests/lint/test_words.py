# SPDX-License-Identifier: GPL-2.0-only
"""The rules for English in CONTRIBUTING.md that a program can check."""

import re
import subprocess

from faultline.common import ROOT

TITLE = re.compile(r"""\b(?:check\w*|ok|not_ok|told|wrong|refused|result|rule|broken|says|loads|"""
                   r"""ends|each_step) (?:\$\? |\d+ )?(['"])(?:\$\{s\})?([^'"]+)\1""")
# A subject that only the title before it explains.
PRONOUN = re.compile(r"(?:its?|and|or|so|that|this|they|then|which)\b", re.IGNORECASE)
WHAT = re.compile(r'(?:"""|(?:^|\s)(?:#|//|/?\*+)\s+)What\b')
IS_NO = re.compile(r"(?<!\bthere )(?<!\banswer )\bis no (?!longer|better|more)", re.IGNORECASE)


def ours(*paths: str) -> dict[str, str]:
    """Our files with prose; patches are mail, which export writes."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *paths,
                            ":!COPYING", ":!kernel/patches"], cwd=ROOT, check=True, text=True,
                           capture_output=True).stdout.splitlines()
    return {name: (ROOT / name).read_text("utf-8") for name in names if (ROOT / name).is_file()}


def test_titles() -> None:
    """A title makes sense without the one before it."""
    titles = [(name, match[2]) for name, text in ours("tests").items()
              if not name.endswith((".py", ".c", ".md")) for match in TITLE.finditer(text)]
    assert len(titles) > 900
    assert not [f"{name}: {title}" for name, title in titles if PRONOUN.match(title)]


def test_what() -> None:
    """Docstrings and comments begin with a noun."""
    assert not [f"{name}: {line.strip()}" for name, text in ours().items()
                for line in text.splitlines() if WHAT.search(line)]


def test_is_no() -> None:
    """A thing is not another thing; only "there" takes "no"."""
    found = []
    for name, text in ours().items():
        line = re.sub(r"\s*\n\s*(?:#|//|\*)?[ \t]*", " ", text)
        found += [f"{name}: {line[match.start() - 30:match.end() + 20]}"
                  for match in IS_NO.finditer(line)]
    assert not found


def test_changelog() -> None:
    """A line has at most 80 columns; lintian warns of a longer one in each package."""
    text = (ROOT / "CHANGELOG").read_text("utf-8")
    assert not [line for line in text.splitlines() if len(line) > 80]
