"""The supervisor in the parent process: applies the decisions of `process_tree` to processes, sockets and signals.

It runs on one thread with one selector. It sleeps until a child sends a message or ends, a signal arrives, a command
connects, or a deadline passes.
"""

import contextlib
import logging
import selectors
import signal
import socket
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final, Protocol

import msgspec

from wharf.agent.logs.forwarding import ForwardedLine
from wharf.agent.supervision.activity import ActivitySample, classify_activity
from wharf.agent.supervision.activity_reader import take_activity_sample
from wharf.agent.supervision.channel import (
    BeginWork,
    DescribeRequest,
    FollowLogRequest,
    ForwardedLogLines,
    FromChild,
    MessageDecoder,
    NewSettings,
    ProcessDescription,
    ProcessOrder,
    Ready,
    ReloadReply,
    ReloadRequest,
    SignOfLife,
    StartupFailure,
    StopRequest,
    UndecodableMessage,
    send_message,
)
from wharf.agent.supervision.child_starter import ChildStarter, StartedProcess
from wharf.agent.supervision.control import (
    ControlLogRequest,
    ControlReloadRequest,
    ControlReply,
    ControlRequest,
    DebugRequest,
    ProcessReport,
)
from wharf.agent.supervision.log_followers import LogFollowers
from wharf.agent.supervision.process_tree import (
    MAX_SILENCE_BEFORE_READY_S,
    AnnounceReady,
    BeginPart,
    Effect,
    Event,
    ExaminePart,
    FinishTree,
    KillPart,
    LogPartEnded,
    LogPartKilled,
    PartAlive,
    PartEnded,
    PartExamined,
    PartReady,
    ProcessTree,
    SpawnPart,
    StopPart,
    StopRequested,
    TimerFired,
)
from wharf.node.supervisor.selector_loop import iter_callbacks
from wharf.world import World

SEND_TIMEOUT_S: Final = 1.0
"""How long sending to a child may block. Children read on a separate thread, so one that does not read is broken."""
DESCRIBE_TIMEOUT_S: Final = 3.0
"""How long a debug request waits for the descriptions of the children."""

log = logging.getLogger(__name__)


class ChildProcess:
    """A running child process and the channel to it."""

    def __init__(self, name: str, process: StartedProcess, channel: socket.socket) -> None:
        self.name = name
        self.process = process
        # Two descriptors of one socket, with different timeouts: sending may block for a short time, reading never does.
        self.channel = channel
        self.channel.settimeout(SEND_TIMEOUT_S)
        self.reading = channel.dup()
        self.reading.setblocking(False)
        self.inbox: MessageDecoder[FromChild] = MessageDecoder(FromChild)
        self.failure_reason = ""
        self.silence_deadline_s = float("inf")
        """When a one-off process (such as a snapshot) is killed unless it sends a sign of life. Infinite for processes that the
        supervisor restarts, such as api and node."""
        self.details: dict[str, str] = {}
        self.activity_sample: ActivitySample | None = None
        """The newest sample of a silent process. Deleted when the process sends a sign of life."""


class SpawnSpec(msgspec.Struct, frozen=True):
    """How to start a part: its first message and the descriptors it inherits."""

    order: ProcessOrder
    """The first message to the process."""
    descriptors: tuple[int, ...] = ()
    """Open files that the child inherits, under the same numbers."""


class PendingDebugRequest:
    """A debug request whose reply waits for the descriptions of children.

    `waiting_for` holds the ids of the requests that have no reply yet.
    """

    def __init__(self, connection: socket.socket, waiting_for: set[int], deadline_s: float) -> None:
        self.connection = connection
        self.waiting_for = waiting_for
        self.deadline_s = deadline_s
        self.descriptions: dict[str, ProcessDescription] = {}


class SupervisorOwner(Protocol):
    """Callbacks of the supervisor into the agent process that owns it."""

    def build_spawn_spec(self, part: str) -> SpawnSpec:
        """Return how to start the process with this name, such as `api-2`."""
        ...

    def on_ready(self, details: Mapping[str, Mapping[str, str]]) -> None:
        """React to all processes being ready for the first time. `details` are their reports, by process name."""
        ...

    def reload(self) -> tuple[ReloadReply, NewSettings | None]:
        """Reload the configuration. Return the reply, and the new settings for the children unless the reload failed."""
        ...

    def build_debug_reply(self, processes: list[ProcessReport]) -> ControlReply:
        """Return the reply to a debug request, with these reports of the children."""
        ...

    def forward_log(self, level: int, put: Callable[[int, str], None]) -> None:
        """Forward log lines of the parent process to `put` from now on; level 0 stops forwarding."""
        ...

    def next_one_off_s(self) -> float | None:
        """Return when `start_one_off` is due on the monotonic clock, or `None`."""
        ...

    def start_one_off(self) -> str | None:
        """Return the name of a process to run once beside the tree, or `None`."""
        ...

    def on_one_off_done(self, part: str, how: str, why: str) -> None:
        """React to the end of a one-off process. `how` is its exit text; `why` is its reported reason, or empty."""
        ...


class Supervisor:
    """Starts, watches and stops the processes of an agent as a `ProcessTree` decides, runs one-off processes beside
    them, and serves the control socket.
    """

    def __init__(
        self, world: World, tree: ProcessTree, owner: SupervisorOwner, *, commands: socket.socket | None
    ) -> None:
        self._world = world
        self._tree = tree
        self._owner = owner
        self._commands = commands
        self._selector = selectors.DefaultSelector()
        self._starter = ChildStarter(self._selector, self._reap)
        self._children: dict[str, ChildProcess] = {}
        self._one_offs: dict[str, ChildProcess] = {}
        self._restarts: dict[str, int] = {}
        self._pending_debugs: list[PendingDebugRequest] = []
        self._last_request_id = 0
        self._followers = LogFollowers(self._selector, self._on_log_level)
        self._finish_effect: FinishTree | None = None

    def run(self) -> str:
        """Run until all processes have ended. Return the reason, or an empty text after a request to stop."""
        with _redirect_signals() as signals:
            self._selector.register(signals, selectors.EVENT_READ, lambda: self._on_signals(signals))
            if self._commands is not None:
                self._commands.setblocking(False)
                self._selector.register(self._commands, selectors.EVENT_READ, self._on_command)
            if len(self._tree.part_states) > 1:
                self._starter.start_fork_server()
            self._apply_effects(self._tree.start(self._now_s()))
            while self._finish_effect is None:
                for call in iter_callbacks(self._selector, self._selector.select(self._compute_sleep_s())):
                    call()
                self._handle_deadlines()
            self._kill_one_offs()
            self._starter.close()
            self._followers.close()
        self._selector.close()
        return self._finish_effect.reason

    # -- events

    def _handle_deadlines(self) -> None:
        """Act on passed deadlines of the tree, of one-off processes and of debug requests."""
        now_s = self._now_s()
        due_s = self._tree.next_deadline_s()
        if due_s is not None and due_s <= now_s:
            self._send_event(TimerFired())
        one_off_s = self._owner.next_one_off_s()
        if one_off_s is not None and one_off_s <= now_s:
            part = self._owner.start_one_off()
            if part is not None and part not in self._one_offs:
                self._one_offs[part] = self._spawn(part)
                self._one_offs[part].silence_deadline_s = now_s + MAX_SILENCE_BEFORE_READY_S
                self._send(self._one_offs[part], BeginWork())
        for one_off in self._one_offs.values():
            if one_off.silence_deadline_s <= now_s:
                one_off.silence_deadline_s = float("inf")
                log.error("killing one-off process: no sign of life", extra={"part": one_off.name})
                one_off.process.kill()
        for debug in [debug for debug in self._pending_debugs if debug.deadline_s <= now_s]:
            self._send_debug_reply(debug)

    def _on_signals(self, signals: socket.socket) -> None:
        """Reap children, reload, or stop, depending on the signal."""
        for number in signals.recv(256):
            match number:
                case signal.SIGCHLD:
                    self._reap()
                case signal.SIGHUP:
                    self._reload()
                case _:
                    log.info("stopping", extra={"signal": signal.Signals(number).name})
                    self._send_event(StopRequested())

    def _reap(self) -> None:
        """Report the end of every child that has exited."""
        for child in self._list_children():
            status = child.process.poll()
            if status is None:
                continue
            self._read(child)  # Unread messages may hold the reason for its end.
            self._close_channel(child)
            how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
            if child.name in self._one_offs:
                del self._one_offs[child.name]
                self._owner.on_one_off_done(child.name, how, child.failure_reason if status else "")
            else:
                del self._children[child.name]
                self._restarts[child.name] = self._restarts.get(child.name, -1) + 1
                self._send_event(PartEnded(child.name, how, child.failure_reason))
        self._starter.reap_orphans({child.process.pid for child in self._list_children()})

    def _list_children(self) -> list[ChildProcess]:
        return [*self._children.values(), *self._one_offs.values()]

    def _close_channel(self, child: ChildProcess) -> None:
        """Close the channel to a child that has ended."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.reading)
        child.reading.close()
        child.channel.close()

    def _on_child(self, child: ChildProcess) -> None:
        """Read the messages of a child whose channel is readable."""
        if not self._read(child):
            # The child closed its end of the channel. SIGCHLD reports the end of the process.
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.reading)

    def _read(self, child: ChildProcess) -> bool:
        """Read and handle all pending messages. Return `False` if the child has closed its end of the channel."""
        while True:
            try:
                data = child.reading.recv(65_536)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            try:
                for message in child.inbox.feed(data):
                    self._on_message(child, message)
            except UndecodableMessage as error:
                log.error("killing child process: undecodable message", extra={"part": child.name, "why": str(error)})
                child.process.kill()
                return False

    def _on_message(self, child: ChildProcess, message: FromChild) -> None:
        """Act on a message of a child."""
        match message:
            case Ready(details):
                child.details = details
                self._send_event(PartReady(child.name))
            case SignOfLife():
                self._on_sign_of_life(child)
            case StartupFailure(why):
                child.failure_reason = why
            case ProcessDescription():
                self._on_description(child, message)
            case ForwardedLogLines(lines, missed):
                self._followers.send_lines(lines, missed)
            case ReloadRequest(question):
                reply = self._reload()
                self._send(child, msgspec.structs.replace(reply, question=question))

    def _on_sign_of_life(self, child: ChildProcess) -> None:
        """Restart the time in which the child must send its next sign of life."""
        if child.name in self._one_offs:
            child.silence_deadline_s = self._now_s() + MAX_SILENCE_BEFORE_READY_S
        else:
            child.activity_sample = None
            self._send_event(PartAlive(child.name))

    # -- effects

    def _send_event(self, event: Event) -> None:
        """Pass an event to the tree and apply its decisions."""
        if isinstance(event, PartReady | PartAlive) and event.part not in self._tree.part_states:
            return
        self._apply_effects(self._tree.handle_event(event, self._now_s()))

    def _apply_effects(self, effects: list[Effect]) -> None:
        """Carry out what the process tree decided, in order."""
        for effect in effects:
            match effect:
                case SpawnPart(part):
                    self._children[part] = self._spawn(part)
                case BeginPart(part):
                    self._send(self._children[part], BeginWork())
                case StopPart(part):
                    self._send(self._children[part], StopRequest())
                case ExaminePart(part):
                    self._examine(self._children[part])
                case KillPart(part):
                    self._children[part].process.kill()
                case AnnounceReady():
                    self._owner.on_ready({name: child.details for name, child in self._children.items()})
                case LogPartEnded(part, cause, delay_s):
                    log.warning("process ended; restarting it process=%s delay_s=%g cause=%s", part, delay_s, cause)
                case LogPartKilled(part):
                    log.warning("killing process: it did not stop in time process=%s", part)
                case FinishTree():
                    self._finish_effect = effect

    def _examine(self, child: ChildProcess) -> None:
        """Find out whether a silent child is busy, and pass the result to the tree."""
        earlier, child.activity_sample = child.activity_sample, take_activity_sample(child.process.pid, self._now_s())
        self._send_event(PartExamined(child.name, classify_activity(earlier, child.activity_sample)))

    def _spawn(self, part: str) -> ChildProcess:
        """Start the process with this name, such as `api-2`, send it its first message, and return it."""
        spawned = self._owner.build_spawn_spec(part)
        ours, theirs = socket.socketpair()
        with theirs:
            process = self._starter.start(part, spawned.order.role, theirs, spawned.descriptors)
        child = ChildProcess(part, process, ours)
        self._selector.register(child.reading, selectors.EVENT_READ, lambda: self._on_child(child))
        self._send(child, spawned.order)
        if self._followers.level:
            self._send(child, FollowLogRequest(self._followers.level))
        return child

    def _send(self, child: ChildProcess, message: msgspec.Struct) -> None:
        """Send a message to a child. Kill a child that does not read."""
        try:
            send_message(child.channel, message)
        except TimeoutError:
            log.error("killing child process: it does not read its messages", extra={"part": child.name})
            child.process.kill()
        except OSError:
            pass  # The child is ending; SIGCHLD reports it.

    def _kill_one_offs(self) -> None:
        """Kill all one-off processes and wait for their end."""
        for child in self._one_offs.values():
            child.process.kill()
            child.process.wait()
            self._close_channel(child)

    def _reload(self) -> ReloadReply:
        """Reload the configuration and send the new settings to all children."""
        reply, new_settings = self._owner.reload()
        if new_settings is not None:
            for child in self._children.values():
                self._send(child, new_settings)
        return reply

    # -- commands

    def _on_command(self) -> None:
        """Accept a connection on the control socket and handle its request."""
        assert self._commands is not None
        try:
            connection, _ = self._commands.accept()
        except OSError:
            return  # The client has disconnected already.
        connection.settimeout(SEND_TIMEOUT_S)
        inbox: MessageDecoder[ControlRequest] = MessageDecoder(ControlRequest)
        try:
            while data := connection.recv(65_536):
                for request in inbox.feed(data):
                    self._on_request(connection, request)
                    return
        except (OSError, UndecodableMessage):
            pass
        connection.close()

    def _on_request(self, connection: socket.socket, request: ControlRequest) -> None:
        """Answer a request on the control socket, or add the connection to the log followers."""
        match request:
            case ControlLogRequest(level):
                self._followers.add(connection, max(1, level))
            case ControlReloadRequest():
                self._send_reply(connection, self._reload())
            case DebugRequest():
                request_ids: set[int] = set()
                for child in self._children.values():
                    self._last_request_id += 1
                    request_ids.add(self._last_request_id)
                    self._send(child, DescribeRequest(self._last_request_id))
                debug = PendingDebugRequest(connection, request_ids, self._now_s() + DESCRIBE_TIMEOUT_S)
                self._pending_debugs.append(debug)
                if not request_ids:
                    self._send_debug_reply(debug)

    def _on_log_level(self, level: int) -> None:
        """Forward log lines of this level and above from all processes to the followers."""
        self._owner.forward_log(level, lambda number, line: self._followers.send_lines([ForwardedLine(number, line)]))
        for child in self._children.values():
            self._send(child, FollowLogRequest(level))

    def _on_description(self, child: ChildProcess, description: ProcessDescription) -> None:
        """Store a child's description, and send the debug reply once it is complete."""
        for debug in list(self._pending_debugs):
            if description.question in debug.waiting_for:
                debug.waiting_for.remove(description.question)
                debug.descriptions[child.name] = description
                if not debug.waiting_for:
                    self._send_debug_reply(debug)

    def _send_debug_reply(self, debug: PendingDebugRequest) -> None:
        """Send the descriptions that have arrived, and close the connection."""
        self._pending_debugs.remove(debug)
        reports: list[ProcessReport] = []
        for name, state in self._tree.part_states.items():
            child = self._children.get(name)
            reports.append(
                ProcessReport(
                    name=name,
                    pid=child.process.pid if child is not None else 0,
                    phase=state.phase.name.lower(),
                    restarts=self._restarts.get(name, 0) + (1 if child is None else 0),
                    details=child.details if child is not None else {},
                    description=debug.descriptions.get(name),
                )
            )
        self._send_reply(debug.connection, self._owner.build_debug_reply(reports))

    def _send_reply(self, connection: socket.socket, reply: ControlReply) -> None:
        """Send the reply and close the connection."""
        with connection, contextlib.suppress(OSError):
            connection.settimeout(SEND_TIMEOUT_S)
            send_message(connection, reply)

    # -- time

    def _now_s(self) -> float:
        return self._world.monotonic_s()

    def _compute_sleep_s(self) -> float | None:
        """Return the seconds until the next deadline, or `None` if there is none."""
        deadlines = [
            self._tree.next_deadline_s(),
            self._owner.next_one_off_s(),
            *(debug.deadline_s for debug in self._pending_debugs),
        ]
        deadlines += [process.silence_deadline_s for process in self._one_offs.values()]
        next_s = min((deadline for deadline in deadlines if deadline is not None), default=float("inf"))
        return None if next_s == float("inf") else max(0.0, next_s - self._now_s())


Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


@contextlib.contextmanager
def _redirect_signals() -> Any:
    """Yield a socket from which each received signal is read as one byte, so that signals are handled between other
    events.
    """
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    old_descriptor = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    handlers: dict[int, Handler] = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield reading
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_descriptor)
        reading.close()
        writing.close()
