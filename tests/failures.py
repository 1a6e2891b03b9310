"""A test that fails shows its reason, and never an internal error of pytest instead.

To show a stack pytest parses the source of every call in it. In CPython below 3.11.8 one parse that is begun while another
is at work breaks that one: `SystemError: AST constructor recursion depth mismatch` (CPython issue 106905). It happens
when the garbage collector, in the middle of a parse, meets something that complains as it goes (a socket that was left
open, a coroutine that nobody awaited): the complaint shows a stack, which is parsed too. A failed test leaves such
things behind, and the deeper its stack the longer the parsing.
"""

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Disable garbage collection while a report is made, so that no warning is formatted during a parse."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if was_enabled:
            gc.enable()
