"""Prints which test files took longest, at the end of a run with `--slowest-files=COUNT`."""

import os
from collections import defaultdict
from collections.abc import Generator
from typing import Final

import pytest

CPU_PROPERTY: Final = "cpu_s"
"""The attribute of a report with the processor time of its test since the report before it."""


class FileDurations:
    """Adds up the durations and the processor time of the tests of each file.

    With pytest-xdist, the processes that run tests measure, and the controller receives all reports. Processor time
    includes that of child processes which have ended and were waited for.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._seconds_by_file: defaultdict[str, float] = defaultdict(float)
        self._cpu_s_by_file: defaultdict[str, float] = defaultdict(float)
        self._measured_cpu_s = _read_cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note in each report how much processor time was used since the one before."""
        report = yield
        cpu_s = _read_cpu_s()
        setattr(report, CPU_PROPERTY, cpu_s - self._measured_cpu_s)
        self._measured_cpu_s = cpu_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds_by_file[file] += report.duration
        self._cpu_s_by_file[file] += getattr(report, CPU_PROPERTY, 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slowest = sorted(self._seconds_by_file.items(), key=lambda entry: entry[1], reverse=True)[: self._count]
        total_cpu_s = sum(self._cpu_s_by_file.values())
        terminalreporter.write_line(
            f"slowest {len(slowest)} of {len(self._seconds_by_file)} files, in seconds "
            f"(processor time in parentheses, {total_cpu_s:.0f} s in all):"
        )
        for file, seconds in slowest:
            terminalreporter.write_line(f"{seconds:6.1f} ({self._cpu_s_by_file[file]:.1f}) {file}")


def _read_cpu_s() -> float:
    """Return the processor time of this process and of its children that were waited for."""
    return sum(os.times()[:4])
