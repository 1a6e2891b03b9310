"""Runs a test again if it used more CPU time than permitted. The best of several attempts counts.

CPU time grows with cache misses, page faults and hyper-threading of a busy machine, in some attempts. A fault of the code
costs too much in each attempt: the results that functions have cached are deleted before the next one.
"""

import re
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

MAX_ATTEMPTS: Final = 4
PACKAGE: Final = "wharf"
"""Functions of this package lose their cached results."""


class CpuLimitExceeded(AssertionError):
    """The code under test used more CPU time than permitted."""


@contextmanager
def limited_cpu(limit_s: float, what: str) -> Iterator[None]:
    """Fail if this thread uses more CPU time than the limit."""
    began_s = time.thread_time()
    yield
    used_s = time.thread_time() - began_s
    if used_s > limit_s:
        raise CpuLimitExceeded(f"{what} used {used_s * 1e3:.1f} ms of CPU time, more than {limit_s * 1e3:.0f} ms")


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
