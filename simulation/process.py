"""A simulated process: a name, a world, and all tasks and callbacks that it has started.

Tasks and callbacks inherit the process in their context. So the loop can kill all of them at once, without their `finally`
blocks, or pause them, as the signals of an operating system do.
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
    """A process on a machine. Network partitions separate machines; all processes of a machine share its clock."""

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

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
        """Start a task that belongs to this process, also if another process calls this."""
        return self._context.run(self.world.start_task, coroutine, name=name)

    def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function in the context of this process."""
        return self._context.run(function, *args, **options)


def current_process() -> Process | None:
    """Return the process to which the running code belongs, or `None` outside of all processes."""
    return PROCESS.get()
