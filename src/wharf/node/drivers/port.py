"""What the agent asks of a driver, and what a driver tells.

A run has a name that is used once, so every request may be said twice: the second time changes nothing. What becomes of a
run is told to the `Watcher`, at least once, also what happened while no agent was there.

A driver that is not one of the node's own is found by an entry point of the group `wharf.drivers`: a callable that is given a
`DriverHome` and returns a `Driver`. It is loaded into the node's agent, and everything is called on the agent's loop.
Whatever it raises but `CannotStart` is its own failure, and fails no more than the task that it was asked about.

Commands beside a task that runs: what a driver that can run them is asked, and what it gives.

A driver need not; one that does has `run_beside`.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from wharf.contract.model.jobs.groups import LogConfig
from wharf.node.core.outcome import Outcome


class CannotStart(Exception):
    """Why a task cannot be started: a sentence for its owner."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        """`is_final`: trying again would come to the same."""
        super().__init__(why)
        self.is_final = is_final


class View(Enum):
    """Where a driver's tasks see their folders, and whether they inherit the agent's environment."""

    HOST = "host"
    """As the node has them."""
    OWN = "own"
    """At `/alloc`, `/local` and `/secrets`, in a file system of their own."""
    WALLED = "walled"
    """As `OWN`, with their own folder as `/`; and what the agent's environment says holds for them too."""


class GivenPort(NamedTuple):
    label: str
    host_ip: str
    value: int
    to: int
    """Within the task's own network; 0: the same."""


class GivenVolume(NamedTuple):
    path: str
    target: str
    is_read_only: bool


class GivenDevice(NamedTuple):
    """A device file of the machine, and where a task with a file system of its own finds it."""

    path: str
    target: str
    permissions: str


class Given(msgspec.Struct, frozen=True):
    """What of the node the task may use."""

    cpu_mhz: int = 0
    cpu_total_mhz: int = 0
    """Of the whole node."""
    memory_mb: int = 0
    memory_max_mb: int = 0
    cores: str = ""
    """Those that are its own, as ranges."""
    ports: tuple[GivenPort, ...] = ()
    volumes: tuple[GivenVolume, ...] = ()
    devices: tuple[GivenDevice, ...] = ()


class TaskNetwork(NamedTuple):
    """A network that the tasks of an allocation share."""

    namespace: str
    """The file that holds it."""
    hostname: str
    files: tuple[tuple[str, str], ...]
    """Of the machine, with where a task with a file system of its own finds them."""


class TaskOrder(msgspec.Struct, frozen=True):
    """One start of one task."""

    run: str
    task: str
    config: Mapping[str, object]
    """The driver's own keys, with all references resolved."""
    environment: dict[str, str]
    task_folder: Path
    log_folder: Path
    log: LogConfig
    user: str = ""
    allocation_id: str = ""
    shared_folder: Path = Path()
    given: Given = Given()
    network: TaskNetwork | None = None
    """None: the machine's."""
    labels: Mapping[str, str] = {}
    """Of what it belongs to: job, group, namespace, node."""


class Health(msgspec.Struct, frozen=True):
    """Whether a driver can run tasks here, and if not, why: a sentence that nodes show."""

    is_healthy: bool
    why: str = "Healthy"
    is_there: bool = True
    attributes: Mapping[str, str] = {}
    """Beside `driver.<name>`, which every driver that works has."""


class Watcher(Protocol):
    """Who hears what becomes of runs."""

    def on_begun(self, run: str) -> None: ...

    def on_refused(self, run: str, why: str) -> None:
        """It was not started and will not be."""
        ...

    def on_ended(self, run: str, outcome: Outcome) -> None: ...

    def on_said(self, run: str, message: str) -> None:
        """Something that the task's owner may like to know: an image is on its way."""
        ...


class Driver(Protocol):
    name: str
    view: View

    async def probe(self) -> Health:
        """Whether it works here. Never raises."""
        ...

    async def start(self, order: TaskOrder) -> None:
        """Have it begin; the watcher is told when it has. Raises CannotStart."""
        ...

    async def recover(self, runs: Collection[str]) -> None:
        """After the agent was away: tell what became of these, each at least once; of what is not known, that."""
        ...

    def signal(self, run: str, name: str) -> None:
        """Ask it to end. An empty name: as is usual with this driver."""
        ...

    def give_up(self, run: str) -> None:
        """It is to end before it has begun: what its start waits for need not come any more. It may begin nevertheless."""
        ...

    def kill(self, run: str) -> None:
        """End it, with all that it started."""
        ...

    def forget(self, run: str) -> None:
        """How it ended is written down; nobody will ask again."""
        ...


class DriverHome(NamedTuple):
    """What a driver that is found by an entry point is made with."""

    watcher: Watcher
    """Its own: of runs of others nothing can be told here."""
    options: Mapping[str, str]
    """`client.options`."""
    folder: Path
    """Its own, where it may remember what it runs."""


Stream = Literal["stdout", "stderr"]


class CommandOrder(msgspec.Struct, frozen=True):
    run: str
    """Beside which start of which task."""
    name: str
    """Of this command, used once. What it starts is found by it."""
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    is_tty: bool = False
    height: int = 0
    width: int = 0


class Command(Protocol):
    """One that has begun."""

    async def read(self, stream: Stream) -> bytes:
        """What it says next; nothing where it will say no more. With a terminal all is `stdout`."""
        ...

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more. What it does not want to hear is dropped."""
        ...

    async def close_input(self) -> None:
        """It will hear no more. With a terminal: it hangs up."""
        ...

    def resize(self, height: int, width: int) -> None: ...

    async def wait(self) -> int:
        """Its exit code; 128 and the number of the signal that it died by."""
        ...

    async def end(self) -> None:
        """Whatever is left of it is killed. Twice does no harm."""
        ...


@runtime_checkable
class CommandDriver(Protocol):
    async def run_beside(self, order: CommandOrder) -> Command:
        """Raises CannotStart."""
        ...
