"""Tests that used more CPU time than permitted run again."""

from pathlib import Path

import pytest

from tests.attempts import MAX_ATTEMPTS, MAX_SLOWNESS, is_cpu_limit_kept, limited_cpu, measure_slowness

ROOT = Path(__file__).parents[1]
CONFTEST = f"""
import sys

sys.path.insert(0, {str(ROOT)!r})

from tests.attempts import pytest_runtest_call as pytest_runtest_call
"""
SLOW_TEST = """
from tests.attempts import CpuLimitExceeded

attempts = []

def test_slow():
    attempts.append(None)
    with open("attempts.txt", "w") as file:
        file.write(str(len(attempts)))
    if len(attempts) < %s:
        raise CpuLimitExceeded("too slow")
"""
CACHING_TEST = """
import functools
import sys
import types

from tests.attempts import CpuLimitExceeded

results = []


@functools.cache
def compute():
    results.append(None)


class Owner:
    @staticmethod
    @functools.cache
    def compute():
        results.append(None)


module = sys.modules["wharf.of_the_test"] = types.ModuleType("wharf.of_the_test")
module.compute, module.Owner = compute, Owner


def test_caches():
    compute()
    Owner.compute()
    if len(results) < 4:
        raise CpuLimitExceeded("too slow")
"""
BURNING_TEST = """
import time

from tests.attempts import limited_cpu

def test_burns():
    with limited_cpu(0.001, "the loop"):
        end = time.thread_time() + 0.008
        while time.thread_time() < end:
            pass
"""


def run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=test)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider")


@pytest.mark.parametrize("fast_attempt", [1, 2, MAX_ATTEMPTS])
def test_a_test_passes_with_its_first_fast_attempt(pytester: pytest.Pytester, fast_attempt: int) -> None:
    assert run(pytester, SLOW_TEST % fast_attempt).parseoutcomes() == {"passed": 1}
    assert Path("attempts.txt").read_text() == str(fast_attempt)


def test_a_test_that_is_slow_in_each_attempt_fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, SLOW_TEST % (MAX_ATTEMPTS + 1))

    assert result.parseoutcomes() == {"failed": 1}
    assert Path("attempts.txt").read_text() == str(MAX_ATTEMPTS)
    result.stdout.fnmatch_lines(["*CpuLimitExceeded: too slow"])


def test_a_test_that_fails_for_another_reason_runs_once(pytester: pytest.Pytester) -> None:
    assert run(pytester, SLOW_TEST.replace("CpuLimitExceeded(", "ValueError(") % 2).parseoutcomes() == {"failed": 1}
    assert Path("attempts.txt").read_text() == "1"


def test_cached_results_are_deleted_before_the_next_attempt(pytester: pytest.Pytester) -> None:
    assert run(pytester, CACHING_TEST).parseoutcomes() == {"passed": 1}


def test_cpu_time_above_a_limit_is_an_error_that_names_both(pytester: pytest.Pytester) -> None:
    result = run(pytester, BURNING_TEST)

    assert result.parseoutcomes() == {"failed": 1}
    result.stdout.fnmatch_lines(["*CpuLimitExceeded: the loop used 8.* ms of CPU time, more than [1-4] ms"])


def test_a_limit_grows_on_a_slow_processor_but_never_without_bounds() -> None:
    assert 1.0 <= measure_slowness() <= MAX_SLOWNESS
    assert is_cpu_limit_kept(0.010, 0.010)
    assert not is_cpu_limit_kept(0.0101 * MAX_SLOWNESS, 0.010)


def test_the_slowness_is_measured_in_less_than_a_tenth_of_a_second() -> None:
    with limited_cpu(0.1, "the measurement"):
        measure_slowness()
