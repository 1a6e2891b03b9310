"""The protocols between the agent and its task drivers.

A run is one start of one task, and its name is used once. Every request can therefore be repeated: the repetition has
no effect. Drivers report what happens to a run to the `Watcher` at least once, including events from a time without an
agent.

Driver plugins are found by an entry point of the group `wharf.drivers`: a callable that takes a `DriverHome` and
returns a `Driver`. The agent loads plugins into its process and calls them on its event loop. An exception other than
`CannotStart` is an error of the plugin and fails only the task concerned.

A driver that can also run commands in running tasks implements `CommandDriver`.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from wharf.contract.model.jobs.groups import LogConfig
from wharf.contract.model.jobs.resources import UNLIMITED_MEMORY_MB
from wharf.node.core.outcome import Outcome


class CannotStart(Exception):
    """The error of a task that cannot be started. Its message is a sentence for the owner of the job."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        """Create the error. `is_final`: another attempt would fail for the same reason."""
        super().__init__(why)
        self.is_final = is_final


class View(Enum):
    """The paths under which a driver's tasks see their folders, and whether they inherit the agent's environment."""

    HOST = "host"
    """Tasks see the paths of the host, and inherit the agent's environment."""
    OWN = "own"
    """Tasks have their own file system, with `/alloc`, `/local` and `/secrets`, and no variables of the agent."""
    WALLED = "walled"
    """Tasks see the task folder as `/`, with `/alloc`, `/local` and `/secrets`, and inherit the agent's environment."""


class GivenPort(NamedTuple):
    """A host port that is allocated to the task."""

    label: str  # the port's name in the job
    host_ip: str  # the address on the host; empty: all addresses
    value: int
    """The port number on the host."""
    to: int
    """The port number in the task's own network; 0: the same as `value`."""


class GivenVolume(NamedTuple):
    """A host path that is mounted into the task."""

    path: str  # on the host
    target: str  # in the task
    is_read_only: bool


class GivenDevice(NamedTuple):
    """A device file of the host, and its path in a task that has its own filesystem."""

    path: str
    target: str
    permissions: str
    """Cgroup permission letters: `r`, `w`, `m`."""


class Given(msgspec.Struct, frozen=True):
    """The resources of the node that are allocated to the task."""

    cpu_mhz: int = 0
    cpu_total_mhz: int = 0
    """The CPU capacity of the whole node."""
    memory_mb: int = 0
    memory_max_mb: int = 0
    """Memory limit if the task may exceed `memory_mb`; 0: it may not, -1: up to all memory of the node."""
    cores: str = ""
    """The CPU cores that are reserved for the task, as ranges such as `0-3,8`."""
    ports: tuple[GivenPort, ...] = ()
    volumes: tuple[GivenVolume, ...] = ()
    devices: tuple[GivenDevice, ...] = ()

    @property
    def memory_limit_mb(self) -> int:
        """Return how much memory the task may use; 0 if its memory is not limited."""
        if self.memory_max_mb == UNLIMITED_MEMORY_MB:
            return 0
        return self.memory_max_mb or self.memory_mb


class TaskNetwork(NamedTuple):
    """A network namespace that the tasks of an allocation share."""

    namespace: str
    """The path of the namespace's file."""
    hostname: str
    files: tuple[tuple[str, str], ...]
    """Host files, each with its path in a task that has its own filesystem."""


class TaskOrder(msgspec.Struct, frozen=True):
    """The request to start one task once."""

    run: str  # the name of this start, used once
    task: str  # the task's name
    config: Mapping[str, object]
    """The keys for the driver, with all references resolved."""
    environment: dict[str, str]
    task_folder: Path
    log_folder: Path  # for the task's output
    log: LogConfig  # size limits of the output
    user: str = ""  # the user to run as; empty: the driver's default
    allocation_id: str = ""
    shared_folder: Path = Path()
    """The allocation's folder, which its tasks share."""
    given: Given = Given()
    network: TaskNetwork | None = None
    """None: the task uses the host's network."""
    labels: Mapping[str, str] = {}
    """Labels with the task's job, group, namespace and node."""


class Health(msgspec.Struct, frozen=True):
    """Whether a driver can run tasks on this node, and why."""

    is_healthy: bool
    why: str = "Healthy"  # a sentence that the node's status shows
    is_there: bool = True
    """False if the driver is not installed or not supported on this machine."""
    attributes: Mapping[str, str] = {}
    """Node attributes, in addition to `driver.<name>`, which every healthy driver sets."""


class Watcher(Protocol):
    """Receives the events of runs from a driver. A run is one start of a task, identified by its name."""

    def on_begun(self, run: str) -> None:
        """Record that the run has started."""
        ...

    def on_refused(self, run: str, why: str) -> None:
        """Record that the run was not started and will not be, with the reason `why`."""
        ...

    def on_ended(self, run: str, outcome: Outcome) -> None:
        """Record that the run has ended with this outcome."""
        ...

    def on_said(self, run: str, message: str) -> None:
        """Show a message about the run to the users of its task, such as the progress of an image download."""
        ...


class Driver(Protocol):
    """Starts, signals and kills tasks in one way, such as in containers."""

    name: str
    view: View

    async def probe(self) -> Health:
        """Return whether the driver works on this node. Never raises."""
        ...

    async def start(self, order: TaskOrder) -> None:
        """Start the run; the driver reports to the watcher when it has started. Raises CannotStart."""
        ...

    async def recover(self, runs: Collection[str]) -> None:
        """Report the state of these runs after a restart of the agent, each at least once.

        For a run that the driver does not know, it reports an unknown outcome.
        """
        ...

    def signal(self, run: str, name: str) -> None:
        """Send the signal `name` to the run. An empty name selects the driver's default stop signal."""
        ...

    def give_up(self, run: str) -> None:
        """Cancel a start that is in progress, such as an image download. The run may start nevertheless."""
        ...

    def kill(self, run: str) -> None:
        """Kill the run with all processes that it started."""
        ...

    def forget(self, run: str) -> None:
        """Delete the driver's state of an ended run, because the agent has stored the outcome."""
        ...


class DriverHome(NamedTuple):
    """The arguments with which a driver plugin is created."""

    watcher: Watcher
    """Accepts events of this driver's runs only."""
    options: Mapping[str, str]
    """`client.options` of the configuration."""
    folder: Path
    """A folder of this driver only, for state that survives a restart."""


Stream = Literal["stdout", "stderr"]


class CommandOrder(msgspec.Struct, frozen=True):
    """The request to run a command in a running task."""

    run: str
    """The run of the task."""
    name: str
    """The name of this command, used once. The processes that it starts are found by it."""
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str  # the working folder of the command
    is_tty: bool = False  # the command gets a terminal
    height: int = 0
    """Rows of the terminal; 0: unknown."""
    width: int = 0
    """Columns of the terminal; 0: unknown."""


class Command(Protocol):
    """A command that was started in a running task."""

    async def read(self, stream: Stream) -> bytes:
        """Return the next output of the stream; empty at its end. With a terminal, all output is `stdout`."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to the command's input, and wait while its buffer is full.

        Data is dropped if the command has closed its input.
        """
        ...

    async def close_input(self) -> None:
        """Close the command's input. With a terminal, send SIGHUP instead."""
        ...

    def resize(self, height: int, width: int) -> None:
        """Set the size of the command's terminal, in rows and columns."""
        ...

    async def wait(self) -> int:
        """Wait until the command has ended. Return its exit code; 128 + signal number if a signal killed it."""
        ...

    async def end(self) -> None:
        """Kill the command and all processes that it started. Repeated calls have no effect."""
        ...


@runtime_checkable
class CommandDriver(Protocol):
    """A driver that can run commands in running tasks."""

    async def run_beside(self, order: CommandOrder) -> Command:
        """Start a command in a running task. Raises CannotStart."""
        ...
