"""The parent process: does what `wharf.agent.supervision.process_tree` decides to real processes, sockets and signals.

One thread, one selector, no loop of its own and no timer while nothing is due: it sleeps until a child speaks or ends, a
signal comes, a command connects, or a pause is over.
"""

import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final, Protocol

import msgspec

from wharf.agent.logs.forwarding import ForwardedLine
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
    FinishTree,
    KillPart,
    LogWarning,
    PartAlive,
    PartEnded,
    PartReady,
    ProcessTree,
    SpawnPart,
    StopPart,
    StopRequested,
    TimerFired,
)
from wharf.config.environment import ENVIRONMENT_PREFIX
from wharf.node.supervisor.selector_loop import list_callbacks
from wharf.world import World

SEND_TIMEOUT_S: Final = 1.0
"""A child takes in what it is told by a thread of its own; one that does not is stopped or broken."""
DESCRIBE_TIMEOUT_S: Final = 3.0

log = logging.getLogger(__name__)


class ChildProcess:
    """One living process and the channel to it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.name = name
        self.process = process
        # Sending may wait a little, reading never does: two handles of one socket, each with its own patience.
        self.channel = channel
        self.channel.settimeout(SEND_TIMEOUT_S)
        self.reading = channel.dup()
        self.reading.setblocking(False)
        self.inbox: MessageDecoder[FromChild] = MessageDecoder(FromChild)
        self.failure_reason = ""
        self.silence_deadline_s = float("inf")
        """Of an errand: when it is killed for its silence."""
        self.details: dict[str, str] = {}


class SpawnSpec(msgspec.Struct, frozen=True):
    """How a part is started."""

    order: ProcessOrder
    descriptors: tuple[int, ...] = ()
    """Open files that the child inherits, under the same numbers."""


class PendingDebugRequest:
    """A command that waits for the descriptions of all children."""

    def __init__(self, connection: socket.socket, waiting_for: set[int], due_s: float) -> None:
        self.connection = connection
        self.waiting_for = waiting_for
        self.deadline_s = due_s
        self.descriptions: dict[str, ProcessDescription] = {}


class SupervisorOwner(Protocol):
    """What the supervisor leaves to its owner: how to start a part, what to tell people, what to read again."""

    def build_spawn_spec(self, part: str) -> SpawnSpec: ...

    def on_ready(self, details: Mapping[str, Mapping[str, str]]) -> None:
        """Everything is ready, for the first time."""
        ...

    def reload(self) -> tuple[ReloadReply, NewSettings | None]:
        """Read the configuration again: what to answer, and what to tell every child."""
        ...

    def build_debug_reply(self, processes: list[ProcessReport]) -> ControlReply: ...

    def forward_log(self, level: int, put: Callable[[int, str], None]) -> None:
        """Give lines of our own log to `put` too; level 0: no more."""
        ...

    def next_one_off_s(self) -> float | None:
        """When, on the monotonic clock, `errand` wants to be called."""
        ...

    def start_one_off(self) -> str | None:
        """A part to run once, beside the tree."""
        ...

    def on_one_off_done(self, part: str, how: str, why: str) -> None: ...


class Supervisor:
    def __init__(
        self, world: World, tree: ProcessTree, owner: SupervisorOwner, *, commands: socket.socket | None
    ) -> None:
        self._world = world
        self._tree = tree
        self._duties = owner
        self._commands = commands
        self._selector = selectors.DefaultSelector()
        self._children: dict[str, ChildProcess] = {}
        self._errands: dict[str, ChildProcess] = {}
        self._restarts: dict[str, int] = {}
        self._debugs: list[PendingDebugRequest] = []
        self._questions = 0
        self._followers = LogFollowers(self._selector, self._on_log_level)
        self._finish: FinishTree | None = None

    def run(self) -> str:
        """Until all has ended. Returns why it had to, or nothing when someone asked for it."""
        with _signals_as_bytes() as signals:
            self._selector.register(signals, selectors.EVENT_READ, lambda: self._on_signals(signals))
            if self._commands is not None:
                self._commands.setblocking(False)
                self._selector.register(self._commands, selectors.EVENT_READ, self._on_command)
            self._do(self._tree.start(self._now_s()))
            while self._finish is None:
                for call in list_callbacks(self._selector, self._selector.select(self._rest_s())):
                    call()
                self._on_time()
            self._end_errands()
            self._followers.close()
        self._selector.close()
        return self._finish.reason

    # -- what happens

    def _on_time(self) -> None:
        now_s = self._now_s()
        due_s = self._tree.next_deadline_s()
        if due_s is not None and due_s <= now_s:
            self._tell_tree(TimerFired())
        errand_s = self._duties.next_one_off_s()
        if errand_s is not None and errand_s <= now_s:
            part = self._duties.start_one_off()
            if part is not None and part not in self._errands:
                self._errands[part] = self._spawn(part)
                self._errands[part].silence_deadline_s = now_s + MAX_SILENCE_BEFORE_READY_S
                self._send(self._errands[part], BeginWork())
        for errand in self._errands.values():
            if errand.silence_deadline_s <= now_s:
                errand.silence_deadline_s = float("inf")
                log.error("an errand gives no sign of life and is killed", extra={"part": errand.name})
                errand.process.kill()
        for debug in [debug for debug in self._debugs if debug.deadline_s <= now_s]:
            self._answer_debug(debug)

    def _on_signals(self, signals: socket.socket) -> None:
        for number in signals.recv(256):
            match number:
                case signal.SIGCHLD:
                    self._reap()
                case signal.SIGHUP:
                    self._reload()
                case _:
                    log.info("stopping", extra={"signal": signal.Signals(number).name})
                    self._tell_tree(StopRequested())

    def _reap(self) -> None:
        for child in [*self._children.values(), *self._errands.values()]:
            status = child.process.poll()
            if status is None:
                continue
            self._read(child)  # Its last words may be waiting.
            self._forget(child)
            how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
            if child.name in self._errands:
                del self._errands[child.name]
                self._duties.on_one_off_done(child.name, how, child.failure_reason if status else "")
            else:
                del self._children[child.name]
                self._restarts[child.name] = self._restarts.get(child.name, -1) + 1
                self._tell_tree(PartEnded(child.name, how, child.failure_reason))

    def _forget(self, child: ChildProcess) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.reading)
        child.reading.close()
        child.channel.close()

    def _on_child(self, child: ChildProcess) -> None:
        if not self._read(child):
            # It closed its end; that it ended is told by a signal of its own.
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.reading)

    def _read(self, child: ChildProcess) -> bool:
        """All that is there. False when the child has closed its end."""
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
                log.error("a child speaks in riddles and is killed", extra={"part": child.name, "why": str(error)})
                child.process.kill()
                return False

    def _on_message(self, child: ChildProcess, message: FromChild) -> None:
        match message:
            case Ready(details):
                child.details = details
                self._tell_tree(PartReady(child.name))
            case SignOfLife():
                self._on_life(child)
            case StartupFailure(why):
                child.failure_reason = why
            case ProcessDescription():
                self._on_description(child, message)
            case ForwardedLogLines(lines, missed):
                self._followers.send_lines(lines, missed)
            case ReloadRequest(question):
                answer = self._reload()
                self._send(child, msgspec.structs.replace(answer, question=question))

    def _on_life(self, child: ChildProcess) -> None:
        if child.name in self._errands:
            child.silence_deadline_s = self._now_s() + MAX_SILENCE_BEFORE_READY_S
        else:
            self._tell_tree(PartAlive(child.name))

    # -- what is done

    def _tell_tree(self, event: Event) -> None:
        if isinstance(event, PartReady | PartAlive) and event.part not in self._tree.part_states:
            return
        self._do(self._tree.handle_event(event, self._now_s()))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SpawnPart(part):
                    self._children[part] = self._spawn(part)
                case BeginPart(part):
                    self._send(self._children[part], BeginWork())
                case StopPart(part):
                    self._send(self._children[part], StopRequest())
                case KillPart(part):
                    self._children[part].process.kill()
                case AnnounceReady():
                    self._duties.on_ready({name: child.details for name, child in self._children.items()})
                case LogWarning(text):
                    log.warning(text)
                case FinishTree():
                    self._finish = effect

    def _spawn(self, part: str) -> ChildProcess:
        spawned = self._duties.build_spawn_spec(part)
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                # -P: a module that lies in the current folder must not take the place of ours.
                [sys.executable, "-P", "-m", "wharf.agent.child", part],
                stdin=theirs.fileno(),
                stdout=2,
                pass_fds=spawned.descriptors,
                # Out of reach of the terminal's signals: children end in order, by the parent's word.
                process_group=0,
                env={name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)},
            )
        child = ChildProcess(part, process, ours)
        self._selector.register(child.reading, selectors.EVENT_READ, lambda: self._on_child(child))
        self._send(child, spawned.order)
        if self._followers.level:
            self._send(child, FollowLogRequest(self._followers.level))
        return child

    def _send(self, child: ChildProcess, message: msgspec.Struct) -> None:
        try:
            send_message(child.channel, message)
        except TimeoutError:
            log.error("a child takes in nothing and is killed", extra={"part": child.name})
            child.process.kill()
        except OSError:
            pass  # It is ending; a signal tells.

    def _end_errands(self) -> None:
        for child in self._errands.values():
            child.process.kill()
            child.process.wait()
            self._forget(child)

    def _reload(self) -> ReloadReply:
        answer, news = self._duties.reload()
        if news is not None:
            for child in self._children.values():
                self._send(child, news)
        return answer

    # -- commands

    def _on_command(self) -> None:
        assert self._commands is not None
        try:
            connection, _ = self._commands.accept()
        except OSError:
            return  # It went away again.
        connection.settimeout(SEND_TIMEOUT_S)
        inbox: MessageDecoder[ControlRequest] = MessageDecoder(ControlRequest)
        try:
            while data := connection.recv(65_536):
                for question in inbox.feed(data):
                    self._on_question(connection, question)
                    return
        except (OSError, UndecodableMessage):
            pass
        connection.close()

    def _on_question(self, connection: socket.socket, question: ControlRequest) -> None:
        match question:
            case ControlLogRequest(level):
                self._followers.add(connection, max(1, level))
            case ControlReloadRequest():
                self._answer(connection, self._reload())
            case DebugRequest():
                waiting: set[int] = set()
                for child in self._children.values():
                    self._questions += 1
                    waiting.add(self._questions)
                    self._send(child, DescribeRequest(self._questions))
                debug = PendingDebugRequest(connection, waiting, self._now_s() + DESCRIBE_TIMEOUT_S)
                self._debugs.append(debug)
                if not waiting:
                    self._answer_debug(debug)

    def _on_log_level(self, level: int) -> None:
        self._duties.forward_log(level, lambda number, line: self._followers.send_lines([ForwardedLine(number, line)]))
        for child in self._children.values():
            self._send(child, FollowLogRequest(level))

    def _on_description(self, child: ChildProcess, description: ProcessDescription) -> None:
        for debug in list(self._debugs):
            if description.question in debug.waiting_for:
                debug.waiting_for.remove(description.question)
                debug.descriptions[child.name] = description
                if not debug.waiting_for:
                    self._answer_debug(debug)

    def _answer_debug(self, debug: PendingDebugRequest) -> None:
        self._debugs.remove(debug)
        news: list[ProcessReport] = []
        for name, standing in self._tree.part_states.items():
            child = self._children.get(name)
            news.append(
                ProcessReport(
                    name=name,
                    pid=child.process.pid if child is not None else 0,
                    phase=standing.phase.name.lower(),
                    restarts=self._restarts.get(name, 0) + (1 if child is None else 0),
                    details=child.details if child is not None else {},
                    description=debug.descriptions.get(name),
                )
            )
        self._answer(debug.connection, self._duties.build_debug_reply(news))

    def _answer(self, connection: socket.socket, answer: ControlReply) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(SEND_TIMEOUT_S)
            send_message(connection, answer)

    # -- time

    def _now_s(self) -> float:
        return self._world.monotonic_s()

    def _rest_s(self) -> float | None:
        dues = [
            self._tree.next_deadline_s(),
            self._duties.next_one_off_s(),
            *(debug.deadline_s for debug in self._debugs),
        ]
        dues += [errand.silence_deadline_s for errand in self._errands.values()]
        soonest = min((due for due in dues if due is not None), default=float("inf"))
        return None if soonest == float("inf") else max(0.0, soonest - self._now_s())


Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


@contextlib.contextmanager
def _signals_as_bytes() -> Any:
    """Signals arrive as bytes on a socket, so that they are handled between events and not in the middle of one."""
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    handlers: dict[int, Handler] = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield reading
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        reading.close()
        writing.close()
