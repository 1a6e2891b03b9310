"""The messages between agent and task supervisor: msgpack with a length in front, over a Unix socket.

Agent and supervisor can have different versions of Wharf, so tags and encoded field names (`name=`) must not change. A
message that arrives twice has no further effect. A run is one start of a task, and `name` is the name of a run.
"""

from typing import Final, TypeAlias

import msgspec

MAX_FRAME_BYTES: Final = 4_000_000
"""Limit of one message; protects both processes from reading garbage as a length."""


class RunLogSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The folder and the size limits for the output of a program."""

    folder: str
    task: str  # the task's name, which log file names begin with
    max_files: int = 10
    max_file_bytes: int = 10_000_000
    is_off: bool = False  # the output is discarded


class RunLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The resource limits of a run, enforced if the machine supports them. 0 means no limit."""

    memory_mb: int = 0
    cpu_shares: int = 0
    """Weight against other programs when the CPU is busy."""
    oom_score: int = 0
    """Value of oom_score_adj: a higher value is killed earlier when the machine is out of memory."""
    processes: int = 0
    """Maximum number of processes and threads at one time."""
    cores: str = ""
    """The CPU cores that the program may use, as ranges; empty: all."""


class RunRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request to start a program once. A second request with the same name has no effect."""

    name: str  # the name of the run
    command: tuple[str, ...]
    environment: dict[str, str]
    work_folder: str
    log: RunLogSettings  # where the output is stored
    limits: RunLimits = RunLimits()
    network: str = ""
    """The file of the network namespace to join; empty: the host's network."""
    is_session_leader: bool = msgspec.field(name="leads_itself", default=False)
    """Whether the command itself becomes a session leader and switches the user.

    The task's environment is then in `input_texts`, and `environment` is that of the programs before it.
    """
    has_own_pids: bool = False
    """Whether the program is the first process of a new PID namespace, whose other processes end with it."""
    has_sandbox: bool = msgspec.field(name="has_walls", default=False)
    """Whether the command sets up a sandbox before it becomes the program.

    The result is in the file `walls` of the run's folder.
    """
    input_texts: tuple[str, ...] = msgspec.field(name="papers", default=())
    """Texts that the program can read at its file descriptors 6, 7, and so on."""


class StartRun(msgspec.Struct, frozen=True, tag="StartRun"):
    """The message that requests to start a program."""

    request: RunRequest = msgspec.field(name="order")


class SignalRun(msgspec.Struct, frozen=True, tag="SignalRun"):
    """The message that requests to send a signal to the process group of the run's program."""

    name: str  # of the run
    signal: int  # its number


class KillRun(msgspec.Struct, frozen=True, tag="KillRun"):
    """The message that requests to kill the run's program with all processes that it started."""

    name: str  # of the run


class ForgetRun(msgspec.Struct, frozen=True, tag="ForgetRun"):
    """The message that requests to delete an ended run, because the agent has stored its outcome."""

    name: str  # of the run


class Ping(msgspec.Struct, frozen=True, tag="Ping"):
    """The message that requests a `Pong`. It is sent only to a supervisor whose `Hello` allows it."""


class RequestRunMessages(msgspec.Struct, frozen=True, tag="RequestRunMessages"):
    """The message that requests a `RunMessage` whenever there is one. It is sent if the `Hello` allows it."""


class ShutDown(msgspec.Struct, frozen=True, tag="ShutDown"):
    """The message that requests the supervisor to exit once no program runs."""


class Hello(msgspec.Struct, frozen=True, tag="Hello"):
    """The first message from the supervisor on a connection.

    It is followed by one message for each run, and then by `AllRunsSent`.
    """

    pid: int
    """The supervisor's process id."""
    tracking_method: str = msgspec.field(name="finds_by")
    """How the processes of a run are found: `cgroup`, or `mark` (by an environment variable)."""
    enforced_limits: tuple[str, ...] = msgspec.field(name="limits", default=())
    """The limits that can be enforced, such as `cpu` and `memory`."""
    answers_pings: bool = msgspec.field(name="pings", default=False)
    """Whether it knows `Ping`. A supervisor of an older version would close the connection."""
    sends_run_messages: bool = False
    """Whether it knows `RequestRunMessages`. An agent of an older version would close the connection after one."""


class Pong(msgspec.Struct, frozen=True, tag="Pong"):
    """The answer to a `Ping`: the supervisor's loop runs."""


class RunBegun(msgspec.Struct, frozen=True, tag="RunBegun"):
    """The message that the run's program has started."""

    name: str  # of the run
    pid: int  # 0: its process is not known


class RunRefused(msgspec.Struct, frozen=True, tag="RunRefused"):
    """The message that the run's program was not started and will not be."""

    name: str  # of the run
    why: str


class RunEnded(msgspec.Struct, frozen=True, tag="RunEnded"):
    """The message that the run's program has ended."""

    name: str  # of the run
    exit_code: int = 0
    signal: int = 0  # the number of the signal that killed it; 0: none
    is_known: bool = True  # False: the exit code was lost
    is_out_of_memory: bool = False


class RunStarting(msgspec.Struct, frozen=True, tag="RunStarting"):
    """The message that the run exists, but its program has not started yet."""

    name: str  # of the run


class RunMessage(msgspec.Struct, frozen=True, tag="RunMessage"):
    """A message about a run for the users of its task, such as that its output cannot be written."""

    name: str  # of the run
    text: str


class AllRunsSent(msgspec.Struct, frozen=True, tag="AllTold"):
    """The message that all runs of the supervisor have been reported on this connection."""


FromAgent: TypeAlias = StartRun | SignalRun | KillRun | ForgetRun | ShutDown | Ping | RequestRunMessages
FromSupervisor: TypeAlias = Hello | RunStarting | RunBegun | RunRefused | RunEnded | AllRunsSent | Pong | RunMessage
