"""Runs test files in several processes that are forked after the tests were collected once (`--processes=COUNT`).

Each worker process takes one file after another, in the order of the collection, and runs its tests in their order, so that
they can share module fixtures. The main process runs no test: it assigns files and receives all reports. Decision 0334.
"""

import sys
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

import pytest

TestFile = Sequence[pytest.Item]
"""The tests of a file, in their order."""
SerializedReport = dict[str, Any]
WORKER_OUTPUT: Final = pytest.StashKey[dict[str, Any]]()
"""Set in the configuration of a worker process: what its plugins pass to those of the main process."""
END_WITHIN_S: Final = 60.0
"""How long the workers of an interrupted run may take to end their current tests and to release fixtures."""


class WorkerHooks:
    """The hooks that this plugin calls."""

    def pytest_worker_finished(self, output: dict[str, Any]) -> None:
        """Receive, in the main process, what the plugins of a worker process have passed."""


@dataclass(frozen=True, slots=True)
class FileRequest:
    """Worker to main process: the last test of a file begins, and the number of the next file is needed."""


@dataclass(frozen=True, slots=True)
class EndedTest:
    """Worker to main process: a test has ended."""

    reports: list[SerializedReport]


@dataclass(frozen=True, slots=True)
class EndedWorker:
    """Worker to main process: no test remains. `error`, if set, ends the whole run."""

    output: dict[str, Any]
    error: str = ""


@dataclass(slots=True)
class Worker:
    """A worker process, as the main process sees it."""

    process: BaseProcess
    connection: Connection
    file: TestFile
    ended_count: int = 0
    next_number: int | None = None
    is_finished: bool = False
    is_stopped: bool = False


@dataclass(slots=True, eq=False)
class WorkerReports:
    """The plugin of a worker process that collects the reports of its current test."""

    config: pytest.Config
    reports: list[SerializedReport] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def take(self) -> list[SerializedReport]:
        """Return the reports since the last call."""
        reports, self.reports = self.reports, []
        return reports


class ForkedWorkers:
    """The pytest plugin of the main process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._files: Sequence[TestFile] = ()
        self._waiting: deque[int] = deque()
        """The numbers of the files that no worker has taken yet."""
        self._workers: list[Worker] = []

    def pytest_addhooks(self, pluginmanager: pytest.PytestPluginManager) -> None:
        pluginmanager.add_hookspecs(WorkerHooks)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests in worker processes. A run of one file is left to pytest."""
        self._files = [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
        if session.testsfailed or session.config.option.collectonly or len(self._files) < 2:
            return None
        if threading.active_count() > 1:
            raise pytest.UsageError("a plugin or an imported module has started a thread, which forks would lack")
        self._waiting.extend(range(len(self._files)))
        try:
            for _ in range(min(self._count, len(self._files))):
                self._start_worker(session, self._files[self._waiting.popleft()])
            while self._workers:
                self._receive(session)
                if session.shouldfail or session.shouldstop:
                    self._stop_workers()
        finally:
            self._end_workers()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _start_worker(self, session: pytest.Session, file: TestFile) -> None:
        context = get_context("fork")
        own_end, worker_end = context.Pipe()
        inherited = [own_end, *(worker.connection for worker in self._workers)]
        arguments = (session, self._files, file, worker_end, inherited)
        process = context.Process(target=run_worker, args=arguments)
        process.start()
        worker_end.close()
        self._workers.append(Worker(process, own_end, file))

    def _receive(self, session: pytest.Session) -> None:
        """Wait for messages of workers, and process one of each."""
        ready = wait([worker.connection for worker in self._workers])
        for worker in [each for each in self._workers if each.connection in ready]:
            try:
                message = worker.connection.recv()
            except (EOFError, ConnectionError):
                self._remove_worker(session, worker)
                continue
            match message:
                case FileRequest():
                    self._assign_file(worker)
                case EndedTest(reports):
                    self._count_test(worker)
                    report_test(session.config, reports)
                case EndedWorker(output, error):
                    worker.is_finished = True
                    session.config.hook.pytest_worker_finished(output=output)
                    session.shouldstop = error or session.shouldstop

    def _assign_file(self, worker: Worker) -> None:
        """Send the number of the next file, or `None` if none remains. A stopped worker has received `None` already."""
        if worker.is_stopped:
            return
        worker.next_number = self._waiting.popleft() if self._waiting else None
        worker.connection.send(worker.next_number)

    def _count_test(self, worker: Worker) -> None:
        worker.ended_count += 1
        if worker.ended_count == len(worker.file):
            worker.file = () if worker.next_number is None else self._files[worker.next_number]
            worker.ended_count, worker.next_number = 0, None

    def _remove_worker(self, session: pytest.Session, worker: Worker) -> None:
        """Remove an ended worker. If it died, report its current test as failed, and start a worker for its other tests."""
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join()
        if worker.is_finished:
            return
        text = f"the process that ran this test ended with exit code {worker.process.exitcode}"
        failed, *remaining = worker.file[worker.ended_count :] or (None,)
        if failed is None:
            session.shouldstop = text
            return
        report = pytest.TestReport(failed.nodeid, failed.location, {}, "failed", text, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
        if worker.next_number is not None:
            self._waiting.appendleft(worker.next_number)
        if not remaining and self._waiting:
            remaining = list(self._files[self._waiting.popleft()])
        if remaining and not worker.is_stopped:
            self._start_worker(session, remaining)

    def _stop_workers(self) -> None:
        """Let each worker end after its current test."""
        self._waiting.clear()
        for worker in self._workers:
            if not worker.is_stopped:
                worker.is_stopped = True
                with suppress(ConnectionError):  # It has ended already.
                    worker.connection.send(None)

    def _end_workers(self) -> None:
        """End the workers of an interrupted run."""
        self._stop_workers()
        for worker in self._workers:
            worker.process.join(END_WITHIN_S)
            worker.process.kill()


def report_test(config: pytest.Config, reports: Sequence[SerializedReport]) -> None:
    """Pass the reports of a worker to the plugins of the main process."""
    for data in reports:
        report = config.hook.pytest_report_from_serializable(config=config, data=data)
        config.hook.pytest_runtest_logreport(report=report)


def run_worker(
    session: pytest.Session,
    files: Sequence[TestFile],
    file: TestFile,
    connection: Connection,
    inherited: Sequence[Connection],
) -> None:
    """Run tests in a worker process, beginning with those of `file`."""
    for each in inherited:  # Otherwise a worker would not notice the end of the main process.
        each.close()
    config = session.config
    restart_capture(config)
    config.pluginmanager.unregister(name="terminalreporter")
    reports = WorkerReports(config)
    config.pluginmanager.register(reports)
    config.stash[WORKER_OUTPUT] = {}
    error = ""
    try:
        run_files(session, files, file, connection, reports)
    except BaseException:  # Also `pytest.exit` and Ctrl-C. The main process shows the error.
        error = traceback.format_exc()
    finally:
        config.hook.pytest_sessionfinish(session=session, exitstatus=pytest.ExitCode.OK)
    connection.send(EndedWorker(config.stash[WORKER_OUTPUT], error or str(session.shouldstop or "")))


def restart_capture(config: pytest.Config) -> None:
    """Capture output in own files: those of the main process have one position that all forks would share."""
    sys.stdout.flush()
    sys.stderr.flush()
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()


def run_files(
    session: pytest.Session, files: Sequence[TestFile], file: TestFile, connection: Connection, reports: WorkerReports
) -> None:
    """Run the tests of one file after another until none remains, or until the main process stops this worker."""
    while file:
        next_file: TestFile = ()
        for place, item in enumerate(file, 1):
            if connection.poll():  # An unrequested message means: stop.
                return
            if place == len(file):  # The next file must be known, because fixtures that it needs as well are kept.
                connection.send(FileRequest())
                number = connection.recv()
                next_file = () if number is None else files[number]
            next_item = next(iter(file[place : place + 1] or next_file), None)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            connection.send(EndedTest(reports.take()))
            if session.shouldfail or session.shouldstop:
                return
        file = next_file
