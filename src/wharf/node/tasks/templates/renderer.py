"""Renders templates in processes of their own, a few at a time and in fair order.

A template is code of a caller who may submit jobs. It may need more time or memory than the node has, so it never runs in the
agent. A rendering that is canceled or exceeds its budget ends with its process; the next one gets a new process.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import msgspec

from wharf.node.subprocesses import ChildProgram, start_program
from wharf.node.tasks.templates.budget import RenderBudget
from wharf.node.tasks.templates.messages import LENGTH_BYTES, MAX_OUTPUT_BYTES, RenderOrder, RenderReply
from wharf.world import World
from wharf.world.tasks import start_supervised

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_RENDERING: Final = 2
"""Renderings at a time on a node; limits their memory and their share of the CPU."""
MAX_IDLE_S: Final = 300.0
"""How long an idle rendering process is kept for the next rendering, because a new one needs 0.2 s of CPU time."""
REPLY_GRACE_S: Final = 5.0
"""How long the agent waits for a process that the kernel should have ended."""
MAX_REPLY_BYTES: Final = 2 * MAX_OUTPUT_BYTES
"""Protects the memory of the agent against data that is not of this protocol."""
INHERITED_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
"""The variables of the agent that a rendering process gets. It needs none of the agent's secrets."""
_BUFFER_BYTES: Final = 1 << 20


class RenderOwner(NamedTuple):
    """Whose templates are rendered. One rendering at a time runs for each job."""

    namespace: str
    job_id: str


class RenderingFailed(Exception):
    """The templates cannot be rendered; the text is for the owner of the task."""

    def __init__(self, reason: str, *, is_final: bool = True) -> None:
        """`is_final`: another attempt would fail in the same way."""
        super().__init__(reason)
        self.is_final = is_final


class _Waiting(NamedTuple):
    """A rendering that waits for its slot."""

    owner: RenderOwner
    slot: "asyncio.Future[None]"


class TemplateRenderer:
    """The rendering processes of a node, and the renderings that wait for them.

    Next is the rendering whose namespace, and then whose job, has used the least CPU time while others waited.
    """

    def __init__(self, world: World, budget: RenderBudget | None = None) -> None:
        self._world = world
        self._budget = budget or RenderBudget()
        self._waiting: list[_Waiting] = []
        self._running: dict[RenderOwner, None] = {}
        self._used_cpu_s: dict[str | RenderOwner, float] = {}
        """By namespace and by owner. Only of those that wait or run, so that it stays small."""
        self._idle: list[_RenderProcess] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._file_threads = ThreadPoolExecutor(MAX_RENDERING, thread_name_prefix="template-files")

    @contextlib.asynccontextmanager
    async def render(self, owner: RenderOwner, order: RenderOrder) -> AsyncIterator[RenderReply]:
        """Render the templates of an order, and yield the reply.

        The next rendering begins after the `with` block: only the outputs of `MAX_RENDERING` tasks are in memory at a time. Raises
        `RenderingFailed`.
        """
        async with self._take_slot(owner):
            process = self._take_idle()
            if process is None:
                try:
                    process = await _RenderProcess.start(self._budget)
                except OSError as error:
                    raise RenderingFailed(
                        f"cannot start the rendering process: {error.strerror}", is_final=False
                    ) from error
            started_s = self._world.monotonic_s()
            reply = None
            try:
                reply = await process.render(order)
            finally:
                used_s = reply.cpu_s if reply is not None else self._world.monotonic_s() - started_s
                for key in (owner.namespace, owner):
                    self._used_cpu_s[key] = self._used_cpu_s.get(key, 0.0) + used_s
                if reply is not None and not reply.is_last:
                    self._keep_idle(process)
                else:
                    self._end(process)
            if reply.error_text:
                raise RenderingFailed(reply.error_text)
            yield reply

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run a function that reads or writes files of a task, on threads for nothing else, and return its result.

        If the caller is canceled, it is released when the function has ended.
        """
        future = asyncio.get_running_loop().run_in_executor(self._file_threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # Read it, so that asyncio does not log it.
            raise

    async def close(self) -> None:
        """End all idle processes. Call it when no rendering runs."""
        while self._idle:
            self._end(self._idle.pop())
        if self._ending:
            await asyncio.wait(self._ending, timeout=REPLY_GRACE_S)
        self._file_threads.shutdown(wait=False)

    # -- slots

    @contextlib.asynccontextmanager
    async def _take_slot(self, owner: RenderOwner) -> AsyncIterator[None]:
        """Wait until this rendering may run, and hold its slot in the `with` block."""
        waiting = _Waiting(owner, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._assign_slots()
        try:
            await waiting.slot
            yield
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                del self._running[owner]
            self._assign_slots()

    def _assign_slots(self) -> None:
        """Let renderings run that wait, as long as slots are free."""
        while len(self._running) < MAX_RENDERING:
            ready = [waiting for waiting in self._waiting if waiting.owner not in self._running]
            if not ready:
                break
            chosen = min(ready, key=self._get_used_cpu)  # The first of equal ones has waited longest.
            self._waiting.remove(chosen)
            self._running[chosen.owner] = None
            if not chosen.slot.done():
                chosen.slot.set_result(None)
        present = {*self._running, *(waiting.owner for waiting in self._waiting)}
        namespaces = {owner.namespace for owner in present}
        self._used_cpu_s = {
            key: used_s for key, used_s in self._used_cpu_s.items() if key in present or key in namespaces
        }

    def _get_used_cpu(self, waiting: _Waiting) -> tuple[float, float]:
        """Return the CPU time of the rendering's namespace and of its job."""
        return self._used_cpu_s.get(waiting.owner.namespace, 0.0), self._used_cpu_s.get(waiting.owner, 0.0)

    # -- processes

    def _take_idle(self) -> "_RenderProcess | None":
        """Return an idle process that still runs; `None` if there is none."""
        while self._idle:
            process = self._idle.pop()
            if process.is_usable:
                return process
            self._end(process)
        return None

    def _keep_idle(self, process: "_RenderProcess") -> None:
        """Keep a process for the next rendering, for a limited time."""
        self._idle.append(process)
        process.idle_timer = asyncio.get_running_loop().call_later(MAX_IDLE_S, self._end_idle, process)

    def _end_idle(self, process: "_RenderProcess") -> None:
        """End a process that has been idle for too long."""
        if process in self._idle:
            self._idle.remove(process)
            self._end(process)

    def _end(self, process: "_RenderProcess") -> None:
        """Begin to end a process."""
        ending = start_supervised(self._world, process.end(), name="end of a rendering process")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


class _RenderProcess:
    """A running rendering process."""

    def __init__(self, program: ChildProgram, budget: RenderBudget) -> None:
        self._program = program
        self._budget = budget
        self.idle_timer: asyncio.TimerHandle | None = None
        """Ends the process when it has been idle for too long."""

    @classmethod
    async def start(cls, budget: RenderBudget) -> "_RenderProcess":
        """Start a process. Raises `OSError`."""
        program = await start_program(
            [sys.executable, "-m", "wharf.node.tasks.templates.worker", *budget.to_arguments()],
            environment={name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ},
            folder="/",
            streams=(asyncio.subprocess.PIPE, asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL),
            buffer_bytes=_BUFFER_BYTES,
        )
        return cls(program, budget)

    @property
    def is_usable(self) -> bool:
        """Whether the process still runs."""
        return self._program.exit_code is None

    async def render(self, order: RenderOrder) -> RenderReply:
        """Send the order and return the reply. Raises `RenderingFailed` if the process ends instead."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        body = msgspec.msgpack.encode(order)
        output, orders = self._program.stdout, self._program.stdin
        assert output is not None
        assert orders is not None
        try:
            async with asyncio.timeout(self._budget.wall_s + REPLY_GRACE_S):
                with contextlib.suppress(ConnectionError):  # The process has ended; its exit code shows why.
                    orders.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
                    await orders.drain()
                length = int.from_bytes(await output.readexactly(LENGTH_BYTES), "big")
                if length <= MAX_REPLY_BYTES:
                    return _decode_reply(await output.readexactly(length))
        except TimeoutError:
            raise RenderingFailed(self._budget.describe_wall(), is_final=False) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise await self._build_end_error() from None
        except msgspec.MsgspecError as error:
            raise RenderingFailed(f"the rendering process sent an invalid reply: {error}", is_final=False) from None
        raise RenderingFailed("the rendering process sent an invalid reply", is_final=False)

    async def _build_end_error(self) -> RenderingFailed:
        """Return the error for a process that has ended during a rendering."""
        try:
            async with asyncio.timeout(REPLY_GRACE_S):
                exit_code = await self._program.wait()
        except TimeoutError:
            exit_code = 0
        match -exit_code:
            case signal.SIGXCPU:
                return RenderingFailed(self._budget.describe_cpu())
            case signal.SIGALRM:
                return RenderingFailed(self._budget.describe_wall(), is_final=False)
            case signal.SIGKILL:
                return RenderingFailed(
                    "the rendering process was killed, perhaps because the node has no memory left", is_final=False
                )
            case signal.SIGSEGV | signal.SIGABRT | signal.SIGBUS:
                return RenderingFailed(
                    f"the rendering process crashed: {self._budget.describe_memory()}, or its values are nested too deeply"
                )
        return RenderingFailed(f"the rendering process ended with exit code {exit_code}", is_final=False)

    async def end(self) -> None:
        """Kill the process, close its pipes and wait for its end."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        if self._program.exit_code is None:
            self._program.kill_group()
        self._program.close_pipes()
        await self._program.wait()


_decode_reply: Final = msgspec.msgpack.Decoder(RenderReply).decode
