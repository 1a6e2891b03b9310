"""The driver `exec` with a supervisor of its own: programs really run within walls, and what they say is read."""

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
from wharf.node.sandbox import DEFAULT_FOLDERS
from wharf.node.settings import ExecSettings
from wharf.node.supervisor.client import SupervisorClient
from wharf.node.supervisor.process_tracker import build_mark
from wharf.node.supervisor.processes import find_marked_processes
from wharf.world import RealWorld

WITHIN_S: Final = 60.0
ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}


class Walled:
    """Each program is the one task of an allocation; the name of its run is the allocation's."""

    def __init__(self, folder: Path, settings: ExecSettings, *, is_raw: bool = False) -> None:
        self.folder = folder
        self._begun: set[str] = set()
        self._ended: dict[str, Outcome] = {}
        self._refused: dict[str, str] = {}
        self._change = asyncio.Event()
        state = folder / "state"
        state.mkdir(exist_ok=True)
        self.node = f"walled-{os.getpid()}"
        self.link = SupervisorClient(RealWorld(), state, self.node, self)
        self.walls = ExecDriver(self.link, settings, DEFAULT_FOLDERS, state)
        self.driver: ExecDriver | RawExecDriver = RawExecDriver(self.link, is_allowed=True) if is_raw else self.walls

    # -- the watcher

    def on_begun(self, run: str) -> None:
        self._begun.add(run)
        self._change.set()

    def on_refused(self, run: str, why: str) -> None:
        self._refused[run] = why
        self._change.set()

    def on_ended(self, run: str, outcome: Outcome) -> None:
        self._ended[run] = outcome
        self._change.set()

    def on_said(self, run: str, message: str) -> None:
        raise AssertionError(f"{run} says {message}")

    # -- what tests do

    def task_folder(self, run: str) -> Path:
        """Made as the node makes it."""
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

    async def begin(
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
        folder = self.task_folder(run)
        order = TaskOrder(
            run=run,
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
        await self._until(lambda: run in self._begun or run in self._ended or run in self._refused)

    async def refused(self, run: str, script: str, **more: Any) -> str:  # Handed through.
        """Why it was not started after all."""
        await self.begin(run, script, **more)
        assert run not in self._begun
        return self._refused[run]

    async def ended(self, run: str) -> Outcome:
        await self._until(lambda: run in self._ended)
        return self._ended[run]

    async def said_by(self, run: str, script: str, **more: Any) -> str:  # Handed through.
        """All that a program prints until its good end."""
        await self.begin(run, script, **more)
        outcome = await self.ended(run)
        assert (outcome.exit_code, self.output(run, "stderr")) == (0, "")
        return self.output(run)

    def output(self, run: str, stream: Stream = "stdout") -> str:
        file = self.folder / run / "alloc" / "logs" / f"t.{stream}.0"
        return file.read_text() if file.exists() else ""

    async def output_is(self, run: str, wanted: str) -> None:
        await wait_on_loop_until(lambda: self.output(run) == wanted, what=f"{run} says {wanted!r}", within_s=WITHIN_S)

    async def beside(
        self, run: str, *words: str, is_tty: bool = False, environment: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        order = CommandOrder(run, f"beside-{run}", words, ENVIRONMENT | (environment or {}), "/", is_tty=is_tty)
        command = await self.driver.run_beside(order)
        if not is_tty:
            await command.close_input()
        said = also_said = b""
        while piece := await command.read("stdout"):
            said += piece
        while piece := await command.read("stderr"):
            also_said += piece
        code = await command.wait()
        await command.end()
        return code, said.decode(), also_said.decode()

    def pid(self, run: str) -> int:
        pid = self.link.find_pid(run)
        assert pid is not None
        return pid

    def left(self, run: str) -> list[int]:
        return [pid for pid, _ in find_marked_processes(frozenset({build_mark(run)}))]

    async def gone(self, run: str) -> None:
        """Told to its end, and forgotten."""
        self.driver.forget(run)
        kept = self.folder / "state" / "runs" / run
        await wait_on_loop_until(
            lambda: not kept.exists() and not self.left(run), what=f"nothing is left of {run}", within_s=WITHIN_S
        )

    async def _until(self, is_so: Any) -> None:  # () -> bool
        async with asyncio.timeout(WITHIN_S):
            while not is_so():
                self._change.clear()
                await self._change.wait()


@asynccontextmanager
async def walled(folder: Path, settings: ExecSettings | None = None, *, is_raw: bool = False) -> AsyncIterator[Walled]:
    """`is_raw`: without walls."""
    found = Walled(folder, settings or ExecSettings(), is_raw=is_raw)
    is_told = asyncio.Event()

    async def on_connected() -> None:
        is_told.set()

    following = asyncio.ensure_future(found.link.run(on_connected))
    try:
        async with asyncio.timeout(WITHIN_S):
            await is_told.wait()
            yield found
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        for pid in (found.link.pid, *(pid for run in found._begun for pid in found.left(run))):
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
        await wait_on_loop_until(
            lambda: not any(found.left(run) for run in found._begun), what="nothing runs", within_s=WITHIN_S
        )
        remove_groups_of(found.node)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)
