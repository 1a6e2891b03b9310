"""Runs real programs with the driver `exec` or `raw_exec` and a supervisor of the test."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.control_groups import remove_groups_of
from tests.waiting import wait_on_loop_until
from wharf.contract.model.jobs.groups import LogConfig
from wharf.node.core.outcome import Outcome
from wharf.node.drivers.exec import ExecDriver
from wharf.node.drivers.port import CommandOrder, Given, Stream, TaskNetwork, TaskOrder
from wharf.node.drivers.raw_exec import RawExecDriver
from wharf.node.processes import find_marked_processes
from wharf.node.sandbox import DEFAULT_FOLDERS
from wharf.node.settings import ExecSettings
from wharf.node.supervisor.client import SupervisorClient
from wharf.node.supervisor.process_tracker import build_mark
from wharf.world import RealWorld

WITHIN_S: Final = 60.0
ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}


class DriverHarness:
    """Runs tasks with a real driver and supervisor. Each task is the only one of its allocation.

    Tests use short names of runs. Supervisors know each run by a name that no other harness uses (`full_name`), because
    processes are found by it on the whole machine, also those of test processes beside this one.
    """

    def __init__(self, folder: Path, settings: ExecSettings, *, is_raw: bool = False) -> None:
        self.folder = folder
        self._begun_runs: set[str] = set()
        self._outcomes: dict[str, Outcome] = {}
        self._refusals: dict[str, str] = {}
        self._change = asyncio.Event()
        state = folder / "state"
        state.mkdir(exist_ok=True)
        self.node = f"harness-{os.getpid()}"
        self.client = SupervisorClient(RealWorld(), state, self.node, self)
        self.sandbox_driver = ExecDriver(self.client, settings, DEFAULT_FOLDERS, state)
        self.driver: ExecDriver | RawExecDriver = (
            RawExecDriver(self.client, is_allowed=True) if is_raw else self.sandbox_driver
        )

    def full_name(self, run: str) -> str:
        """Return the name by which the driver and the supervisor know the run."""
        return f"{run}.{self.node}"

    def _short_name(self, full_name: str) -> str:
        return full_name.removesuffix(f".{self.node}")

    # -- the watcher

    def on_begun(self, run: str) -> None:
        self._begun_runs.add(self._short_name(run))
        self._change.set()

    def on_refused(self, run: str, why: str) -> None:
        self._refusals[self._short_name(run)] = why
        self._change.set()

    def on_ended(self, run: str, outcome: Outcome) -> None:
        self._outcomes[self._short_name(run)] = outcome
        self._change.set()

    def on_said(self, run: str, message: str) -> None:
        raise AssertionError(f"unexpected message about {run}: {message}")

    # -- for tests

    def task_folder(self, run: str) -> Path:
        """Create the folder of a task as the node does."""
        folder = self.folder / run / "t"
        for name, mode in (
            ("", 0o777),
            ("local", 0o777),
            ("secrets", 0o777),
            ("tmp", 0o1777),
            ("../alloc/logs", 0o777),
        ):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name).chmod(mode)
        return folder

    async def start(
        self,
        run: str,
        script: str,
        *,
        user: str = "",
        given: Given | None = None,
        network: TaskNetwork | None = None,
        environment: dict[str, str] | None = None,
        **config: object,
    ) -> None:
        """Start a task that runs this shell script. `config` is added to the config of the task."""
        folder = self.task_folder(run)
        order = TaskOrder(
            run=self.full_name(run),
            task="t",
            config={"command": "/bin/sh", "args": ["-c", script], **config},
            environment=ENVIRONMENT | (environment or {}),
            task_folder=folder,
            log_folder=folder.parent / "alloc" / "logs",
            log=LogConfig(),
            user=user,
            allocation_id=run,
            shared_folder=folder.parent / "alloc",
            given=given or Given(),
            network=network,
        )
        await self.driver.start(order)
        await self._until(lambda: run in self._begun_runs or run in self._outcomes or run in self._refusals)

    async def read_refusal(self, run: str, script: str, **options: Any) -> str:  # Options of `start`.
        """Start a task that the supervisor refuses, and return the reason."""
        await self.start(run, script, **options)
        assert run not in self._begun_runs
        return self._refusals[run]

    async def wait_ended(self, run: str) -> Outcome:
        await self._until(lambda: run in self._outcomes)
        return self._outcomes[run]

    async def run_and_read_output(self, run: str, script: str, **options: Any) -> str:  # Options of `start`.
        """Run a task that succeeds, and return its output."""
        await self.start(run, script, **options)
        outcome = await self.wait_ended(run)
        assert (outcome.exit_code, self.output(run, "stderr")) == (0, "")
        return self.output(run)

    def output(self, run: str, stream: Stream = "stdout") -> str:
        file = self.folder / run / "alloc" / "logs" / f"t.{stream}.0"
        return file.read_text() if file.exists() else ""

    async def wait_output(self, run: str, expected: str) -> None:
        await wait_on_loop_until(
            lambda: self.output(run) == expected, what=f"{run} prints {expected!r}", within_s=WITHIN_S
        )

    async def run_command(
        self, run: str, *words: str, is_tty: bool = False, environment: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        """Run a command in a task; return its exit code, output and errors."""
        order = CommandOrder(
            self.full_name(run),
            f"command-{self.full_name(run)}",
            words,
            ENVIRONMENT | (environment or {}),
            "/",
            is_tty=is_tty,
        )
        command = await self.driver.run_beside(order)
        if not is_tty:
            await command.close_input()
        output = errors = b""
        while chunk := await command.read("stdout"):
            output += chunk
        while chunk := await command.read("stderr"):
            errors += chunk
        code = await command.wait()
        await command.end()
        return code, output.decode(), errors.decode()

    def pid(self, run: str) -> int:
        pid = self.client.find_pid(self.full_name(run))
        assert pid is not None
        return pid

    def list_processes(self, run: str) -> list[int]:
        return [pid for pid, _ in find_marked_processes(frozenset({build_mark(self.full_name(run))}))]

    async def forget_and_wait(self, run: str) -> None:
        """Delete a run, and wait until its folder and processes are gone."""
        self.driver.forget(self.full_name(run))
        run_folder = self.folder / "state" / "runs" / self.full_name(run)
        await wait_on_loop_until(
            lambda: not run_folder.exists() and not self.list_processes(run),
            what=f"nothing is left of {run}",
            within_s=WITHIN_S,
        )

    async def _until(self, condition: Any) -> None:  # () -> bool
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                self._change.clear()
                await self._change.wait()


@asynccontextmanager
async def running_harness(
    folder: Path, settings: ExecSettings | None = None, *, is_raw: bool = False
) -> AsyncIterator[DriverHarness]:
    """Run a harness; at the end, kill everything that it started. `is_raw`: with the driver raw_exec."""
    harness = DriverHarness(folder, settings or ExecSettings(), is_raw=is_raw)
    is_connected = asyncio.Event()

    async def on_connected() -> None:
        is_connected.set()

    client_task = asyncio.ensure_future(harness.client.run(on_connected))
    try:
        async with asyncio.timeout(WITHIN_S):
            await is_connected.wait()
            yield harness
    finally:
        client_task.cancel()
        await asyncio.gather(client_task, return_exceptions=True)
        for pid in (harness.client.pid, *(pid for run in harness._begun_runs for pid in harness.list_processes(run))):
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
        await wait_on_loop_until(
            lambda: not any(harness.list_processes(run) for run in harness._begun_runs),
            what="all processes are gone",
            within_s=WITHIN_S,
        )
        remove_groups_of(harness.node)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)
