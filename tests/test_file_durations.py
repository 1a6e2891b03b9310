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
    report.cpu_s = report.duration / 4
"""
MEASURING_CONFTEST = """
from tests.file_durations import FileDurations

def pytest_configure(config):
    config.pluginmanager.register(FileDurations(1), "file-durations")
"""
TWO_TESTS = "def test_one():\n    pass\n\ndef test_two():\n    pass\n"
COMPUTING_TEST = """
import subprocess, sys, time

COMPUTE = "import time\\nwhile time.process_time() < 0.3: pass"

def test_computes():
    subprocess.run([sys.executable, "-c", COMPUTE], check=True)
"""


def test_the_files_with_the_longest_durations_are_listed_longest_first(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_short=TWO_TESTS, test_long=TWO_TESTS, test_middle=TWO_TESTS)

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    assert result.parseoutcomes() == {"passed": 6}
    # Each test has a setup, a call and a teardown.
    result.stdout.fnmatch_lines(
        [
            "slowest 2 of 3 files, in seconds (processor time in parentheses, 46 s in all):",
            " 120.0 (30.0) test_long.py",
            "  60.0 (15.0) test_middle.py",
            "=*",
        ],
        consecutive=True,
    )


def test_processor_time_includes_that_of_child_processes(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(MEASURING_CONFTEST)
    pytester.makepyfile(test_child=COMPUTING_TEST)

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    line = next(line for line in result.outlines if line.endswith("test_child.py"))
    assert float(line.partition("(")[2].partition(")")[0]) >= 0.3
