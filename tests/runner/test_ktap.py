# SPDX-License-Identifier: GPL-2.0-only
"""The reader of test results on good, bad and damaged output."""

import pytest

from faultline.vm import ktap

ONE = "TAP version 13\n1..2\nok 1 a\nok 2 b\n"
NESTED = """KTAP version 1
1..2
    KTAP version 1
    # Subtest: suite
    1..2
    ok 1 first
        KTAP version 1
        # Subtest: parameters
        ok 1 x
        ok 2 y
    ok 2 second
ok 1 suite
ok 2 alone
"""
DEEP_FAILURE = NESTED.replace("        ok 2 y", "        not ok 2 y")
# A text, and passed, failed, skipped.
COUNTS = {
    "directives": ("1..6\nok 1 a # SKIP no device\nok 2 # skip\nnot ok 3 b # TODO later\n"
                   "ok 4 # XFAIL c\nnot ok 5 d # TIMEOUT 45 seconds\nnot ok 6 e # SKIP\n", 1, 1, 4),
    "word that looks like a directive": ("1..1\nnot ok 1 will SKIP nothing #1\n", 0, 1, 0),
    "missing tests": ("1..4\nok 1 a\nok 3 c\n", 2, 2, 0),
    "result outside the plan": ("1..1\nok 1 a\nok 2 b\n", 2, 1, 0),
    "second result": ("1..2\nok 1 a\nok 2 b\nok 2 b\n", 3, 1, 0),
    "no plan": ("ok 1 a\nok 2 b\n", 2, 1, 0),
    "plan at the end": ("ok 1 a\nok 2 b\n1..2\n", 2, 0, 0),
    "skip all": ("1..0 # SKIP needs root\n", 0, 0, 1),
    "nothing": ("", 0, 1, 0),
    "prose only": ("hello\n", 0, 1, 0),
    "crash": ("Segmentation fault\n", 0, 1, 0),
    "plan only": ("KTAP version 1\n1..3\n", 0, 3, 0),
    "prose is not a result": ("1..1\nok then\nokay 2\n# ok 3 quoted\nnotok\nok 1 a\n", 1, 0, 0),
    "failure without number": ("1..1\nok 1 a\nnot ok\n", 1, 1, 0),
    "result glued to other text": ("1..1\nworking...ok 1 a\n", 0, 1, 0),
    "carriage returns": ("1..1\r\nok 1 a\r\n", 1, 0, 0),
    "two programs": (ONE + ONE, 4, 0, 0),
    "two programs, one without a header": (ONE + "1..1\nok 1 c\n", 3, 0, 0),
    "program that died before the next one": (
        "TAP version 13\n1..2\nok 1 a\nTAP version 13\n1..1\nok 1 c\n", 2, 1, 0),
    "second plan in the middle": ("1..2\nok 1 a\n1..1\nok 2 b\n", 2, 1, 0),
    # Of subtests, leaves are counted, containers are not.
    "leaves": (NESTED, 4, 0, 0),
    "failure that the parent hides": (DEEP_FAILURE, 3, 1, 0),
    "parent that fails by itself": (NESTED.replace("ok 1 suite", "not ok 1 suite"), 4, 1, 0),
    "missing subtest": (NESTED.replace("    ok 1 first\n", ""), 3, 1, 0),
    "subtests cut off": (NESTED[:NESTED.index("    ok 2 second")], 3, 5, 0),
    "skipped suite": ("1..1\n    1..0 # SKIP not built in\nok 1 suite # SKIP not built in\n",
                      0, 0, 1),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    text, *wanted = COUNTS[name]
    summary = ktap.parse(text.splitlines(keepends=True))
    assert [summary.passed, summary.failed, summary.skipped] == wanted, summary.failures


def test_all_pass() -> None:
    summary = ktap.parse("KTAP version 1\n1..2\nok 1 a\nok 2 - b # fine\n".splitlines())
    assert summary.ok
    assert summary.line("x") == "# x: 2 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize(("text", "failed", "failures"), [
    ("TAP version 13\n1..2\nok 1 a\nnot ok 2 - the bad one\n", 1, ["the bad one"]),
    ("1..1\nok 1 a\nBail out! no memory\n", 1, ["Bail out! no memory"]),
    ("1..9\nok 2 a\nok 3 b\nok 8 c\n", 6, ["test 1 of 9 has no result",
                                           "tests 4 to 7 of 9 have no result",
                                           "test 9 of 9 has no result"]),
    (DEEP_FAILURE.replace("    ok 2 second", "    not ok 2 second")
     .replace("ok 1 suite", "not ok 1 suite"), 1, ["suite > second > y"])])
def test_failures_are_named(text: str, failed: int, failures: list[str]) -> None:
    summary = ktap.parse(text.splitlines())
    assert not summary.ok
    assert summary.failed == failed
    assert summary.failures == failures
