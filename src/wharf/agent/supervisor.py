"""The parent process: does what `wharf.agent.tree` decides to real processes, sockets and signals.

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

from wharf.agent.channel import (
    Alive,
    Broken,
    CannotGoOn,
    DescribeYourself,
    Description,
    FromChild,
    Go,
    Inbox,
    LogTold,
    NewSettings,
    Order,
    PleaseReload,
    Ready,
    ReloadAnswer,
    Stop,
    TellLog,
    send,
)
from wharf.agent.control import Answer, DebugAsked, LogAsked, ProcessNews, Question, ReloadAsked
from wharf.agent.log_followers import LogFollowers
from wharf.agent.log_telling import ToldLine
from wharf.agent.tree import (
    SILENCE_BEFORE_READY_S,
    AnnounceReady,
    AskToStop,
    Effect,
    Ended,
    Event,
    Finish,
    Kill,
    LetGo,
    Lived,
    ProcessTree,
    Readied,
    Spawn,
    StopAsked,
    TimePassed,
    Warn,
)
from wharf.config.environment import PREFIX
from wharf.node.supervisor.turns import calls
from wharf.world import World

SEND_TIMEOUT_S: Final = 1.0
"""A child takes in what it is told by a thread of its own; one that does not is stopped or broken."""
DESCRIBE_WITHIN_S: Final = 3.0

log = logging.getLogger(__name__)


class Child:
    """One living process and the channel to it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.name = name
        self.process = process
        # Sending may wait a little, reading never does: two handles of one socket, each with its own patience.
        self.channel = channel
        self.channel.settimeout(SEND_TIMEOUT_S)
        self.reading = channel.dup()
        self.reading.setblocking(False)
        self.inbox: Inbox[FromChild] = Inbox(FromChild)
        self.why = ""
        self.silent_at_s = float("inf")
        """Of an errand: when it is killed for its silence."""
        self.details: dict[str, str] = {}


class Spawned(msgspec.Struct, frozen=True):
    """How a part is started."""

    order: Order
    descriptors: tuple[int, ...] = ()
    """Open files that the child inherits, under the same numbers."""


class PendingDebug:
    """A command that waits for the descriptions of all children."""

    def __init__(self, connection: socket.socket, waiting_for: set[int], due_s: float) -> None:
        self.connection = connection
        self.waiting_for = waiting_for
        self.due_s = due_s
        self.descriptions: dict[str, Description] = {}


class Duties(Protocol):
    """What the supervisor leaves to its owner: how to start a part, what to tell people, what to read again."""

    def spawned(self, part: str) -> Spawned: ...

    def on_ready(self, details: Mapping[str, Mapping[str, str]]) -> None:
        """Everything is ready, for the first time."""
        ...

    def reload(self) -> tuple[ReloadAnswer, NewSettings | None]:
        """Read the configuration again: what to answer, and what to tell every child."""
        ...

    def debug(self, processes: list[ProcessNews]) -> Answer: ...

    def tell_log(self, level: int, put: Callable[[int, str], None]) -> None:
        """Give lines of our own log to `put` too; level 0: no more."""
        ...

    def next_errand_s(self) -> float | None:
        """When, on the monotonic clock, `errand` wants to be called."""
        ...

    def errand(self) -> str | None:
        """A part to run once, beside the tree."""
        ...

    def on_errand_done(self, part: str, how: str, why: str) -> None: ...


class Supervisor:
    def __init__(self, world: World, tree: ProcessTree, duties: Duties, *, commands: socket.socket | None) -> None:
        self._world = world
        self._tree = tree
        self._duties = duties
        self._commands = commands
        self._selector = selectors.DefaultSelector()
        self._children: dict[str, Child] = {}
        self._errands: dict[str, Child] = {}
        self._restarts: dict[str, int] = {}
        self._debugs: list[PendingDebug] = []
        self._questions = 0
        self._followers = LogFollowers(self._selector, self._on_log_level)
        self._finish: Finish | None = None

    def run(self) -> str:
        """Until all has ended. Returns why it had to, or nothing when someone asked for it."""
        with _signals_as_bytes() as signals:
            self._selector.register(signals, selectors.EVENT_READ, lambda: self._on_signals(signals))
            if self._commands is not None:
                self._commands.setblocking(False)
                self._selector.register(self._commands, selectors.EVENT_READ, self._on_command)
            self._do(self._tree.start(self._now_s()))
            while self._finish is None:
                for call in calls(self._selector, self._selector.select(self._rest_s())):
                    call()
                self._on_time()
            self._end_errands()
            self._followers.close()
        self._selector.close()
        return self._finish.why

    # -- what happens

    def _on_time(self) -> None:
        now_s = self._now_s()
        due_s = self._tree.next_due_s()
        if due_s is not None and due_s <= now_s:
            self._tell_tree(TimePassed())
        errand_s = self._duties.next_errand_s()
        if errand_s is not None and errand_s <= now_s:
            part = self._duties.errand()
            if part is not None and part not in self._errands:
                self._errands[part] = self._spawn(part)
                self._errands[part].silent_at_s = now_s + SILENCE_BEFORE_READY_S
                self._send(self._errands[part], Go())
        for errand in self._errands.values():
            if errand.silent_at_s <= now_s:
                errand.silent_at_s = float("inf")
                log.error("an errand gives no sign of life and is killed", extra={"part": errand.name})
                errand.process.kill()
        for debug in [debug for debug in self._debugs if debug.due_s <= now_s]:
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
                    self._tell_tree(StopAsked())

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
                self._duties.on_errand_done(child.name, how, child.why if status else "")
            else:
                del self._children[child.name]
                self._restarts[child.name] = self._restarts.get(child.name, -1) + 1
                self._tell_tree(Ended(child.name, how, child.why))

    def _forget(self, child: Child) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.reading)
        child.reading.close()
        child.channel.close()

    def _on_child(self, child: Child) -> None:
        if not self._read(child):
            # It closed its end; that it ended is told by a signal of its own.
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.reading)

    def _read(self, child: Child) -> bool:
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
                for message in child.inbox.add(data):
                    self._on_message(child, message)
            except Broken as error:
                log.error("a child speaks in riddles and is killed", extra={"part": child.name, "why": str(error)})
                child.process.kill()
                return False

    def _on_message(self, child: Child, message: FromChild) -> None:
        match message:
            case Ready(details):
                child.details = details
                self._tell_tree(Readied(child.name))
            case Alive():
                self._on_life(child)
            case CannotGoOn(why):
                child.why = why
            case Description():
                self._on_description(child, message)
            case LogTold(lines, missed):
                self._followers.tell(lines, missed)
            case PleaseReload(question):
                answer = self._reload()
                self._send(child, msgspec.structs.replace(answer, question=question))

    def _on_life(self, child: Child) -> None:
        if child.name in self._errands:
            child.silent_at_s = self._now_s() + SILENCE_BEFORE_READY_S
        else:
            self._tell_tree(Lived(child.name))

    # -- what is done

    def _tell_tree(self, event: Event) -> None:
        if isinstance(event, Readied | Lived) and event.part not in self._tree.standings:
            return
        self._do(self._tree.on(event, self._now_s()))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Spawn(part):
                    self._children[part] = self._spawn(part)
                case LetGo(part):
                    self._send(self._children[part], Go())
                case AskToStop(part):
                    self._send(self._children[part], Stop())
                case Kill(part):
                    self._children[part].process.kill()
                case AnnounceReady():
                    self._duties.on_ready({name: child.details for name, child in self._children.items()})
                case Warn(text):
                    log.warning(text)
                case Finish():
                    self._finish = effect

    def _spawn(self, part: str) -> Child:
        spawned = self._duties.spawned(part)
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
                env={name: value for name, value in os.environ.items() if not name.startswith(PREFIX)},
            )
        child = Child(part, process, ours)
        self._selector.register(child.reading, selectors.EVENT_READ, lambda: self._on_child(child))
        self._send(child, spawned.order)
        if self._followers.level:
            self._send(child, TellLog(self._followers.level))
        return child

    def _send(self, child: Child, message: msgspec.Struct) -> None:
        try:
            send(child.channel, message)
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

    def _reload(self) -> ReloadAnswer:
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
        inbox: Inbox[Question] = Inbox(Question)
        try:
            while data := connection.recv(65_536):
                for question in inbox.add(data):
                    self._on_question(connection, question)
                    return
        except (OSError, Broken):
            pass
        connection.close()

    def _on_question(self, connection: socket.socket, question: Question) -> None:
        match question:
            case LogAsked(level):
                self._followers.add(connection, max(1, level))
            case ReloadAsked():
                self._answer(connection, self._reload())
            case DebugAsked():
                waiting: set[int] = set()
                for child in self._children.values():
                    self._questions += 1
                    waiting.add(self._questions)
                    self._send(child, DescribeYourself(self._questions))
                debug = PendingDebug(connection, waiting, self._now_s() + DESCRIBE_WITHIN_S)
                self._debugs.append(debug)
                if not waiting:
                    self._answer_debug(debug)

    def _on_log_level(self, level: int) -> None:
        self._duties.tell_log(level, lambda number, line: self._followers.tell([ToldLine(number, line)]))
        for child in self._children.values():
            self._send(child, TellLog(level))

    def _on_description(self, child: Child, description: Description) -> None:
        for debug in list(self._debugs):
            if description.question in debug.waiting_for:
                debug.waiting_for.remove(description.question)
                debug.descriptions[child.name] = description
                if not debug.waiting_for:
                    self._answer_debug(debug)

    def _answer_debug(self, debug: PendingDebug) -> None:
        self._debugs.remove(debug)
        news: list[ProcessNews] = []
        for name, standing in self._tree.standings.items():
            child = self._children.get(name)
            news.append(
                ProcessNews(
                    name=name,
                    pid=child.process.pid if child is not None else 0,
                    phase=standing.phase.name.lower(),
                    restarts=self._restarts.get(name, 0) + (1 if child is None else 0),
                    details=child.details if child is not None else {},
                    description=debug.descriptions.get(name),
                )
            )
        self._answer(debug.connection, self._duties.debug(news))

    def _answer(self, connection: socket.socket, answer: Answer) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(SEND_TIMEOUT_S)
            send(connection, answer)

    # -- time

    def _now_s(self) -> float:
        return self._world.monotonic_s()

    def _rest_s(self) -> float | None:
        dues = [self._tree.next_due_s(), self._duties.next_errand_s(), *(debug.due_s for debug in self._debugs)]
        dues += [errand.silent_at_s for errand in self._errands.values()]
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
