"""A simulated process: a name, a world, and all that it ever started.

What a process starts carries its name along (in the context that tasks and callbacks inherit), so that the loop can
kill it at once, without a last word, or hold it still for a while, as the machine's own signals would.
"""

from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from wharf.world import SimulatedWorld

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
P = ParamSpec("P")

PROCESS: Final[ContextVar["Process | None"]] = ContextVar("process", default=None)


class Process:
    """`machine` is where it runs: partitions lie between machines, and a machine's clock is one for all on it."""

    def __init__(self, name: str, machine: str, world: SimulatedWorld) -> None:
        self.name = name
        self.machine = machine
        self.world = world
        self.is_dead = False
        self.is_paused = False
        self._context: Context = copy_context()
        self._context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
        """Begin a task that belongs to this process, whoever asks for it."""
        return self._context.run(self.world.start_task, work, name=name)

    def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function as this process."""
        return self._context.run(function, *args, **options)


def current_process() -> Process | None:
    return PROCESS.get()
