"""The pytest plugin of `make mutants`: records which tests reach which lines, and runs chosen tests in a chosen order.

The environment says which: MUTANT_COVERAGE names the file for coverage, MUTANT_TESTS a file with the ids of tests.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get("MUTANT_COVERAGE"):
        config.pluginmanager.register(_CoverageRecorder(Path(path)))
    if path := os.environ.get("MUTANT_TESTS"):
        config.pluginmanager.register(_TestSelection(json.loads(Path(path).read_text())))


class _TestSelection:
    """Keeps only the given tests, in the given order."""

    def __init__(self, ids: list[str]) -> None:
        self._positions = {node_id: position for position, node_id in enumerate(ids)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._positions]
        items.sort(key=lambda item: self._positions[item.nodeid])


class _CoverageRecorder:
    """Records the lines that each test reaches, and the duration of each test that passes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._children = path.with_suffix(".children")  # Recordings of the processes that tests start.
        self._children.mkdir(parents=True, exist_ok=True)
        self._durations: dict[str, float] = {}
        self._failed: set[str] = set()
        self._coverage = coverage.Coverage(data_file=str(path), source=["src/wharf"], messages=False)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        os.environ |= {"MUTANT_TEST": item.nodeid, "MUTANT_CHILDREN": str(self._children)}
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            del os.environ["MUTANT_TEST"]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._durations[report.nodeid] = self._durations.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        self._add_children()
        passed = {node_id: seconds for node_id, seconds in self._durations.items() if node_id not in self._failed}
        self._path.with_suffix(".json").write_text(json.dumps(passed))

    def _add_children(self) -> None:
        """Add the recordings of the tests' processes to that of the tests, and delete them."""
        recorded = coverage.CoverageData(str(self._path))
        recorded.read()
        for path in sorted(self._children.iterdir()):
            child = coverage.CoverageData(str(path))
            with contextlib.suppress(coverage.CoverageException):  # The process was killed while it wrote the file.
                child.read()
                recorded.update(child)
        shutil.rmtree(self._children)
