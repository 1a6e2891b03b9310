"""The rules for machine abilities, each in a separate pytest run."""

from pathlib import Path

import pytest

from tests.abilities import PROBES, is_ci

ROOT = Path(__file__).parents[1]

CONFTEST = """
from tests.abilities import AbilityRules, Allowed

def pytest_configure(config):
    rules = AbilityRules(
        probes={{"walking": lambda: None, "flying": lambda: "no wings"}},
        allowed=[{allowed}],
        in_ci={in_ci},
    )
    config.pluginmanager.register(rules, "rules")
"""


def run(
    pytester: pytest.Pytester, test: str, *arguments: str, allowed: str = "", in_ci: bool = False
) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.format(allowed=allowed, in_ci=in_ci))
    pytester.makepyfile(test_it=f"import pytest\n\n{test}")
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "--strict-markers", *arguments)


def needing(ability: str) -> str:
    return f"@pytest.mark.needs('{ability}')\ndef test_that_needs():\n    pass\n"


def needing_program(program: str) -> str:
    return f"@pytest.mark.needs_program('{program}')\ndef test_that_needs():\n    pass\n"


MAY_LACK_FLYING = "Allowed(id='test_it.py::test_that_needs', probe='flying', because='it is a machine')"
MAY_LACK_WALKING = "Allowed(id='test_it.py::test_that_needs', probe='walking', because='it is a machine')"
IS_GONE = "Allowed(id='test_it.py::test_that_was', probe='flying', because='it is a machine')"


def test_a_test_runs_where_the_machine_is_able(pytester: pytest.Pytester) -> None:
    result = run(pytester, needing("walking"))

    assert result.parseoutcomes() == {"passed": 1}
    assert result.ret == pytest.ExitCode.OK


def test_a_listed_test_runs_where_the_machine_is_able(pytester: pytest.Pytester) -> None:
    result = run(pytester, needing("walking"), allowed=MAY_LACK_WALKING)

    assert result.parseoutcomes() == {"passed": 1}


def test_a_listed_test_counts_as_unavailable_where_its_ability_is_missing(pytester: pytest.Pytester) -> None:
    result = run(pytester, needing("flying"), allowed=MAY_LACK_FLYING, in_ci=True)

    assert result.parseoutcomes() == {"unavailable": 1}
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["ability flying: missing, no wings", "UNAVAILABLE test_it.py::test_that_needs (flying*"]
    )


def test_an_unlisted_test_fails_where_its_ability_is_missing(pytester: pytest.Pytester) -> None:
    result = run(pytester, needing("flying"))

    assert result.parseoutcomes() == {"errors": 1}
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_test_listed_for_another_ability_fails(pytester: pytest.Pytester) -> None:
    both = "@pytest.mark.needs('walking')\n" + needing("flying")

    result = run(pytester, both, allowed=MAY_LACK_WALKING)

    assert result.parseoutcomes() == {"errors": 1}


def test_an_entry_for_a_test_that_does_not_need_the_ability_is_refused(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_that_needs():\n    pass\n", allowed=MAY_LACK_FLYING)

    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_an_entry_for_a_missing_test_is_rejected_in_a_whole_run(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntestpaths = .")

    result = run(pytester, needing("walking"), allowed=IS_GONE)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_that_was, which does not exist*"])


def test_an_entry_for_a_test_outside_the_selection_is_ignored(pytester: pytest.Pytester) -> None:
    result = run(pytester, needing("walking"), "test_it.py", allowed=IS_GONE)

    assert result.parseoutcomes() == {"passed": 1}


def test_an_ability_without_a_probe_fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, needing("swimming"))

    assert result.parseoutcomes() == {"errors": 1}


def test_a_test_whose_program_is_missing_is_skipped_by_name(pytester: pytest.Pytester) -> None:
    result = run(pytester, needing_program("no-such-program"))

    assert result.parseoutcomes() == {"skipped": 1}
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["SKIPPED test_it.py::test_that_needs: in CI this would fail"])


def test_a_test_whose_program_is_missing_fails_in_ci(pytester: pytest.Pytester) -> None:
    result = run(pytester, needing_program("no-such-program"), in_ci=True)

    assert result.parseoutcomes() == {"errors": 1}
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_test_whose_program_exists_runs(pytester: pytest.Pytester) -> None:
    assert run(pytester, needing_program("sh"), in_ci=True).parseoutcomes() == {"passed": 1}


def test_no_test_may_be_skipped_in_ci_for_any_reason(pytester: pytest.Pytester) -> None:
    skipping = "def test_that_runs():\n    pass\n\ndef test_that_skips():\n    pytest.skip('for a reason')\n"

    result = run(pytester, skipping, in_ci=True)

    assert result.parseoutcomes() == {"passed": 1, "skipped": 1}
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def in_two_processes(pytester: pytest.Pytester, test: str, *, allowed: str = "") -> pytest.RunResult:
    """Run a test with two pytest-xdist workers, as `make test` does; the controller prints what they found."""
    pytester.makeini("[pytest]\ntestpaths = .")
    pytester.makeconftest(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{CONFTEST.format(allowed=allowed, in_ci=True)}"
    )
    pytester.makepyfile(test_it=f"import pytest\n\n{test}")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:schemathesis", "-n", "2")


def test_unavailable_tests_of_two_processes_are_counted_and_listed(pytester: pytest.Pytester) -> None:
    result = in_two_processes(pytester, needing("flying"), allowed=MAY_LACK_FLYING)

    assert result.parseoutcomes() == {"unavailable": 1}
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["ability flying: missing, no wings", "UNAVAILABLE test_it.py::test_that_needs (flying*"]
    )


def test_no_test_may_be_skipped_in_ci_in_two_processes_either(pytester: pytest.Pytester) -> None:
    result = in_two_processes(pytester, "def test_that_skips():\n    pytest.skip('for a reason')\n")

    assert result.parseoutcomes() == {"skipped": 1}
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_an_entry_for_a_missing_test_is_rejected_in_two_processes(pytester: pytest.Pytester) -> None:
    result = in_two_processes(pytester, needing("walking"), allowed=IS_GONE)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["ERROR: *test_that_was, which does not exist*"])


@pytest.mark.parametrize("ability", sorted(PROBES))
def test_every_probe_answers_with_a_reason_or_nothing(ability: str) -> None:
    answer = PROBES[ability]()

    assert answer is None or len(answer) > 5


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("1", True), ("", False), ("false", False)])
def test_ci_is_recognized_by_the_environment(value: str, expected: bool) -> None:
    assert is_ci({"CI": value}) is expected
