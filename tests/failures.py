"""Ensures that the report of a failed test shows its reason, and not an internal error of pytest.

To show a stack, pytest parses the source of every call in it. In CPython below 3.11.8, a parse that starts during another
parse breaks the outer one: `SystemError: AST constructor recursion depth mismatch` (CPython issue 106905). This happens when
the garbage collector runs during a parse and deletes an object with a warning, such as an open socket or a coroutine that
was not awaited. The warning shows a stack, which is parsed too. A failed test leaves such objects behind.
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
