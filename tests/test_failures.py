"""The report of a failing test shows its reason, even if the test leaves garbage behind."""

import pytest

DEEP_AMID_GARBAGE = """
import ast
import gc

class Complains:
    def __init__(self):
        self.circle = self

    def __del__(self):
        ast.parse("a.b + c")  # As showing a stack would.
        if not over:
            Complains()

over = []

def fall(depth):
    assert depth > 0, "the ground"
    fall(depth - 1)

def teardown_module():
    gc.set_threshold(*thresholds)
    over.append(True)
    gc.collect()

def test_that_fails():
    global thresholds
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    Complains()
    fall(40)
"""


def test_a_failure_with_a_deep_stack_and_garbage_shows_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.failures import pytest_runtest_makereport")
    pytester.makepyfile(test_it=DEEP_AMID_GARBAGE)

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    assert result.parseoutcomes() == {"failed": 1}
    result.stdout.fnmatch_lines(["E *AssertionError: the ground"])
