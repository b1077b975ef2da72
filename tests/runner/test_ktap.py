# SPDX-License-Identifier: GPL-2.0-only
"""The reader of test results on good, bad and damaged output."""


from faultline.vm import ktap


def counts(text: str) -> tuple[int, int, int]:
    """Return passed, failed, skipped of a text."""
    summary = ktap.parse(text.splitlines(keepends=True))
    return summary.passed, summary.failed, summary.skipped


# --- One level of results.

def test_all_pass() -> None:
    summary = ktap.parse("KTAP version 1\n1..2\nok 1 a\nok 2 - b # fine\n".splitlines())
    assert (summary.passed, summary.failed, summary.skipped) == (2, 0, 0)
    assert summary.ok
    assert summary.line("x") == "# x: 2 passed, 0 failed, 0 skipped"


def test_not_ok_fails_and_is_named() -> None:
    summary = ktap.parse("TAP version 13\n1..2\nok 1 a\nnot ok 2 - the bad one\n".splitlines())
    assert not summary.ok
    assert summary.failures == ["the bad one"]


def test_directives() -> None:
    text = ("1..6\nok 1 a # SKIP no device\nok 2 # skip\nnot ok 3 b # TODO later\n"
            "ok 4 # XFAIL c\nnot ok 5 d # TIMEOUT 45 seconds\nnot ok 6 e # SKIP\n")
    assert counts(text) == (1, 1, 4)


def test_word_that_looks_like_a_directive() -> None:
    assert counts("1..1\nnot ok 1 will SKIP nothing #1\n") == (0, 1, 0)


def test_missing_tests_fail() -> None:
    assert counts("1..4\nok 1 a\nok 3 c\n") == (2, 2, 0)


def test_missing_tests_in_a_row_are_one_line() -> None:
    summary = ktap.parse("1..9\nok 2 a\nok 3 b\nok 8 c\n".splitlines())
    assert summary.failures == ["test 1 of 9 has no result", "tests 4 to 7 of 9 have no result",
                                "test 9 of 9 has no result"]
    assert summary.failed == 6


def test_result_outside_the_plan_fails() -> None:
    assert counts("1..1\nok 1 a\nok 2 b\n") == (2, 1, 0)


def test_second_result_fails() -> None:
    assert counts("1..2\nok 1 a\nok 2 b\nok 2 b\n") == (3, 1, 0)


def test_no_plan_fails() -> None:
    assert counts("ok 1 a\nok 2 b\n") == (2, 1, 0)


def test_plan_at_the_end() -> None:
    assert counts("ok 1 a\nok 2 b\n1..2\n") == (2, 0, 0)


def test_skip_all() -> None:
    assert counts("1..0 # SKIP needs root\n") == (0, 0, 1)


def test_nothing_fails() -> None:
    for text in ("", "hello\n", "Segmentation fault\n"):
        assert counts(text) == (0, 1, 0), text


def test_plan_only_fails() -> None:
    assert counts("KTAP version 1\n1..3\n") == (0, 3, 0)


def test_bail_out_fails() -> None:
    summary = ktap.parse("1..1\nok 1 a\nBail out! no memory\n".splitlines())
    assert summary.failures == ["Bail out! no memory"]


def test_prose_is_no_result() -> None:
    assert counts("1..1\nok then\nokay 2\n# ok 3 quoted\nnotok\nok 1 a\n") == (1, 0, 0)


def test_failure_without_number_counts() -> None:
    assert counts("1..1\nok 1 a\nnot ok\n") == (1, 1, 0)


def test_result_glued_to_other_text_is_missed_and_fails() -> None:
    assert counts("1..1\nworking...ok 1 a\n") == (0, 1, 0)


def test_carriage_returns() -> None:
    assert counts("1..1\r\nok 1 a\r\n") == (1, 0, 0)


def test_several_programs() -> None:
    one = "TAP version 13\n1..2\nok 1 a\nok 2 b\n"
    assert counts(one + one) == (4, 0, 0)
    assert counts(one + "1..1\nok 1 c\n") == (3, 0, 0)


def test_program_that_died_before_the_next_one() -> None:
    dead = "TAP version 13\n1..2\nok 1 a\n"
    good = "TAP version 13\n1..1\nok 1 c\n"
    assert counts(dead + good) == (2, 1, 0)


def test_second_plan_in_the_middle() -> None:
    assert counts("1..2\nok 1 a\n1..1\nok 2 b\n") == (2, 1, 0)


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


# --- Subtests: leaves are counted, containers are not.

def test_leaves_count() -> None:
    assert counts(NESTED) == (4, 0, 0)


def test_failure_deep_down_is_named_by_its_path() -> None:
    text = NESTED.replace("        ok 2 y", "        not ok 2 y")
    text = text.replace("    ok 2 second", "    not ok 2 second")
    text = text.replace("ok 1 suite", "not ok 1 suite")
    summary = ktap.parse(text.splitlines())
    assert summary.failures == ["suite > second > y"]
    assert (summary.passed, summary.failed) == (3, 1)


def test_failure_that_the_parent_hides() -> None:
    assert counts(NESTED.replace("        ok 2 y", "        not ok 2 y"))[1] == 1


def test_parent_that_fails_by_itself() -> None:
    assert counts(NESTED.replace("ok 1 suite", "not ok 1 suite"))[1] == 1


def test_missing_subtest() -> None:
    assert counts(NESTED.replace("    ok 1 first\n", "")) == (3, 1, 0)


def test_subtests_cut_off() -> None:
    text = NESTED[:NESTED.index("    ok 2 second")]
    passed, failed, _ = counts(text)
    assert passed == 3
    assert failed >= 3


def test_skipped_suite() -> None:
    text = "1..1\n    1..0 # SKIP not built in\nok 1 suite # SKIP not built in\n"
    assert counts(text) == (0, 0, 1)
