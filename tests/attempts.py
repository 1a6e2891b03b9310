"""Limits of CPU time in tests.

A limit is meant for the processor on which it was set. Where others are slower, or share their cores with busy neighbours, the
same work takes longer: a work whose duration there is known is measured beside the code under test, and the limit grows by
the same factor.

CPU time also grows with cache misses and page faults, in some attempts. So a test that used more than permitted runs again,
and the best of several attempts counts. A fault of the code costs too much in each attempt: the results that functions have
cached are deleted before the next one.
"""

import re
import statistics
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

MAX_ATTEMPTS: Final = 4
PACKAGE: Final = "wharf"
"""Functions of this package lose their cached results."""
REFERENCE_S: Final = 0.000_95
"""How long the known work takes on an idle core of the processor on which the limits were set."""
SAMPLE_COUNT: Final = 9
MAX_SLOWNESS: Final = 4.0
"""No limit grows by more. A processor that is slower is of no use for these tests."""


class CpuLimitExceeded(AssertionError):
    """The code under test used more CPU time than permitted."""


def measure_slowness() -> float:
    """Return how many times longer work takes on this processor at this moment than on the one on which limits were set."""
    samples = []
    for _ in range(SAMPLE_COUNT):
        began_s = time.thread_time()
        _do_known_work()
        samples.append(time.thread_time() - began_s)
    return min(max(statistics.median(samples) / REFERENCE_S, 1.0), MAX_SLOWNESS)


def _do_known_work() -> None:
    """Build, sort and search small objects, as most code under test does."""
    records = {f"key-{number}": [number, str(number), {"n": number}] for number in range(1_500)}
    for _, _ in sorted(records.items(), key=lambda each: str(each[1][1])):
        pass
    "".join(records).count("9")


def is_cpu_limit_kept(used_s: float, limit_s: float) -> bool:
    """Return whether the CPU time is within the limit as it is for this processor. Call it right after the work."""
    return used_s <= limit_s or used_s <= limit_s * measure_slowness()


def require_cpu(used_s: float, limit_s: float, what: str) -> None:
    """Fail if the CPU time is above the limit as it is for this processor. Call it right after the work."""
    if used_s > limit_s and used_s > (grown_s := limit_s * measure_slowness()):
        raise CpuLimitExceeded(f"{what} used {used_s * 1e3:.1f} ms of CPU time, more than {grown_s * 1e3:.0f} ms")


@contextmanager
def limited_cpu(limit_s: float, what: str) -> Iterator[None]:
    """Fail if this thread uses more CPU time than the limit as it is for this processor."""
    began_s = time.thread_time()
    yield
    require_cpu(time.thread_time() - began_s, limit_s, what)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Repeat a test that raises `CpuLimitExceeded`, with the same fixtures. The last attempt decides."""
    try:
        return (yield)
    except CpuLimitExceeded:
        for _ in range(MAX_ATTEMPTS - 2):
            try:
                return run_again(item)
            except CpuLimitExceeded:
                pass
    return run_again(item)


def run_again(item: pytest.Item) -> None:
    delete_cached_results()
    item.runtest()


def delete_cached_results() -> None:
    """Empty the caches of all functions and methods, so that an attempt does not profit from an earlier one."""
    re.purge()
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == PACKAGE]
    classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    for owner in (*modules, *classes):
        for value in vars(owner).values():
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if callable(clear := getattr(function, "cache_clear", None)) and not isinstance(function, type):
                clear()
