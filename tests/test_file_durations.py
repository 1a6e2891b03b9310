"""The list of the slowest test files at the end of a run."""

import pytest

CONFTEST = """
import pytest
from tests.file_durations import FileDurations

SECONDS = {"test_short": 1.0, "test_long": 20.0, "test_middle": 10.0}

def pytest_configure(config):
    config.pluginmanager.register(FileDurations(2), "file-durations")

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    report.duration = SECONDS[report.nodeid.partition(".")[0]]
"""
TWO_TESTS = "def test_one():\n    pass\n\ndef test_two():\n    pass\n"


def test_the_files_with_the_longest_durations_are_listed_longest_first(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_short=TWO_TESTS, test_long=TWO_TESTS, test_middle=TWO_TESTS)

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    assert result.parseoutcomes() == {"passed": 6}
    # Each test has a setup, a call and a teardown.
    result.stdout.fnmatch_lines(
        ["slowest 2 of 3 files, in seconds:", " 120.0 test_long.py", "  60.0 test_middle.py", "=*"], consecutive=True
    )
