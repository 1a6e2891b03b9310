"""Prints which test files took longest, at the end of a run with `--slowest-files=COUNT`."""

from collections import defaultdict

import pytest


class FileDurations:
    """Adds up the durations of the tests of each file. With pytest-xdist, the controller receives all reports."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._seconds_by_file: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds_by_file[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slowest = sorted(self._seconds_by_file.items(), key=lambda entry: entry[1], reverse=True)[: self._count]
        terminalreporter.write_line(f"slowest {len(slowest)} of {len(self._seconds_by_file)} files, in seconds:")
        for file, seconds in slowest:
            terminalreporter.write_line(f"{seconds:6.1f} {file}")
