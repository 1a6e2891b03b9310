"""The loop of the supervisor: one thread, one selector, no clock but while a disk is full.

It lives as long as something runs or an agent is there. Agents come and go; what they missed is told to the next one.
"""

import contextlib
import fcntl
import logging
import os
import selectors
import signal
import socket
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.supervisor import messages
from wharf.node.supervisor.folder import Kept, RunFolder
from wharf.node.supervisor.leftovers import Leftovers
from wharf.node.supervisor.messages import Frames, framed
from wharf.node.supervisor.processes import Process, boot_id, has_arguments, look_up, with_arguments
from wharf.node.supervisor.run import OWN_PIDS, SHELL, SHIM, Run, Stage
from wharf.node.supervisor.turns import calls

log = logging.getLogger(__name__)

RUNS: Final = "runs"
SOCKET: Final = "supervisor.sock"
LOCK: Final = "supervisor.lock"
EARLY_AGAIN_S: Final = 0.005
STUCK_AGAIN_S: Final = 1.0
IDLE_S: Final = 20.0
"""With nothing to keep and nobody to tell, it ends after this while."""
RECEIVE_BYTES: Final = 262_144
SEND_TIMEOUT_S: Final = 5.0


class OtherKeeper(Exception):
    """Another supervisor looks after this folder."""


class Agent:
    """The connection to one agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.frames = Frames()
        self.is_here = True
        self._said: list[bytes] = []

    def tell(self, message: msgspec.Struct) -> None:
        """With the next `send_all`."""
        self._said.append(framed(message))

    def send_all(self) -> None:
        if not self._said:
            return
        said, self._said = b"".join(self._said), []
        try:
            self.connection.sendall(said)
        except OSError:  # It is gone, or does not listen: the next one asks for everything.
            self.is_here = False


class Keeper:
    def __init__(self, folder: Path, leftovers: Leftovers) -> None:
        """Raises OtherKeeper."""
        self._folder = folder
        self._leftovers = leftovers
        self._runs: dict[str, Run] = {}
        self._refused: dict[str, str] = {}
        self._agent: Agent | None = None
        self._stuck: dict[str, Run] = {}
        self._early: list[tuple[str, int]] = []
        """Signals for programs that are only just beginning."""
        self._is_to_end = False
        self._selector = selectors.DefaultSelector()
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OtherKeeper(f"another supervisor looks after {folder}") from None
        self._boot_id = boot_id()

    def run(self) -> None:
        """Until told to end, or until nobody needs it."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._adopt_all()
        listening = self._listen()
        self._selector.register(listening, selectors.EVENT_READ, lambda: self._welcome(listening))
        while not self._is_over():
            is_idle = not self._runs and self._agent is None
            wait_s = EARLY_AGAIN_S if self._early else STUCK_AGAIN_S if self._stuck else IDLE_S if is_idle else None
            heard = self._selector.select(wait_s)
            if is_idle and not heard:
                break
            for call in calls(self._selector, heard):
                call()
            self._reap()
            self._send_early()
            stuck, self._stuck = self._stuck, {}
            for run in stuck.values():
                run.try_output_again()
            if self._agent is not None:
                self._agent.send_all()
                if not self._agent.is_here:
                    self._part_with(self._agent)
        listening.close()
        self._leftovers.sweep(self._runs)
        with contextlib.suppress(OSError):
            (self._folder / SOCKET).unlink()

    def _is_over(self) -> bool:
        return self._is_to_end and all(run.stage is Stage.ENDED for run in self._runs.values())

    def _listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        (self._folder / SOCKET).unlink(missing_ok=True)
        folder = os.open(self._folder, os.O_PATH | os.O_CLOEXEC)
        # The name of a socket is short; the folder's may be long.
        listening.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        os.close(folder)
        (self._folder / SOCKET).chmod(0o600)
        listening.listen(8)
        listening.setblocking(False)
        return listening

    def _reap(self) -> None:
        """Shims are our children, but for those that an earlier supervisor began."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    # -- agents

    def _welcome(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            if self._agent is not None:
                self._part_with(self._agent)
            # Sending may wait a little for an agent that is busy; an agent that hangs must not stop the logs.
            connection.settimeout(SEND_TIMEOUT_S)
            agent = self._agent = Agent(connection)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(agent))
            agent.tell(messages.Hello(os.getpid(), self._leftovers.name, self._leftovers.bounds))
            for run in self._runs.values():
                self._tell_of(run)
            for name, why in self._refused.items():
                agent.tell(messages.RunRefused(name, why))
            agent.tell(messages.AllTold())

    def _part_with(self, agent: Agent) -> None:
        self._selector.unregister(agent.connection)
        agent.connection.close()
        if self._agent is agent:
            self._agent = None

    def _hear(self, agent: Agent) -> None:
        if self._agent is not agent:
            return
        try:
            data = agent.connection.recv(RECEIVE_BYTES)
        except OSError:
            data = b""
        try:
            for frame in agent.frames.add(data):
                self._obey(_decoder.decode(frame))
        except (messages.Riddle, msgspec.MsgspecError) as error:
            log.error("the agent speaks in riddles: %s", error)
            data = b""
        if not data:
            self._part_with(agent)

    def _obey(self, message: messages.FromAgent) -> None:
        match message:
            case messages.StartRun(order):
                self._start(order)
            case messages.SignalRun(name, number):
                self._early.append((name, number))
                self._send_early()
            case messages.KillRun(name):
                if (run := self._runs.get(name)) is not None:
                    run.kill()
            case messages.ForgetRun(name):
                self._forget(name)
            case messages.ShutDown():
                self._is_to_end = True

    def _send_early(self) -> None:
        early, self._early = self._early, []
        for name, number in early:
            run = self._runs.get(name)
            if run is not None and not run.signal(number):
                self._early.append((name, number))

    def _tell_of(self, run: Run) -> None:
        if self._agent is None:
            return
        if run.ended is not None:
            self._agent.tell(run.ended)
        elif run.stage is Stage.RUNNING:
            self._agent.tell(messages.RunBegun(run.name, run.task.pid if run.task is not None else 0))
        else:
            self._agent.tell(messages.RunStarting(run.name))

    # -- runs

    def _start(self, order: messages.RunOrder) -> None:
        known = self._runs.get(order.name)
        if known is not None:
            self._tell_of(known)
            return
        folder = RunFolder(self._folder / RUNS / order.name)
        try:
            folder.make(Kept(order.name, self._boot_id, order.log))
            run = self._run_of(folder, order.log)
        except OSError as error:
            folder.remove()
            self._refuse(order.name, f"its place in the node's state folder cannot be made: {error.strerror}")
            return
        try:
            run.spawn(order)
        except OSError as error:
            del self._runs[order.name]
            run.discard()
            self._refuse(order.name, f"it cannot be started: {error.strerror}")

    def _run_of(self, folder: RunFolder, order: messages.LogOrder) -> Run:
        run = Run(folder, order, self._leftovers, self._selector, on_change=self._tell_of, on_stuck=self._on_stuck)
        self._runs[run.name] = run
        return run

    def _refuse(self, name: str, why: str) -> None:
        self._refused[name] = why
        if self._agent is not None:
            self._agent.tell(messages.RunRefused(name, why))

    def _forget(self, name: str) -> None:
        self._refused.pop(name, None)
        run = self._runs.get(name)
        if run is not None and run.stage is Stage.ENDED:
            del self._runs[name]
            self._stuck.pop(name, None)
            run.forget()

    def _on_stuck(self, run: Run, why: str) -> None:
        if run.name not in self._stuck:
            log.error("the output of %s cannot be written: %s; it is tried again", run.name, why)
        if run.stage is not Stage.ENDED:
            self._stuck[run.name] = run

    def _adopt_all(self) -> None:
        for entry in sorted((self._folder / RUNS).iterdir()):
            folder = RunFolder(entry)
            try:
                self._adopt(folder)
            except (FileNotFoundError, msgspec.ValidationError, msgspec.DecodeError):
                folder.remove()  # The order is written last: nothing was started yet.
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                log.error("what is kept of %s cannot be read: %s", entry.name, error)
        self._leftovers.sweep(self._runs)

    def _adopt(self, folder: RunFolder) -> None:
        kept = folder.kept()
        if kept.boot_id != self._boot_id:
            if folder.outcome() is None:  # Whatever it was, it ended with the machine.
                folder.note_unknown()
            self._run_of(folder, kept.log).adopt(None)
            return
        shim = self._shim_of(folder)
        if shim is None and not folder.has_begun():
            # It was never started: whoever wants it says so again.
            folder.remove()
            return
        self._run_of(folder, kept.log).adopt(shim)

    @staticmethod
    def _shim_of(folder: RunFolder) -> Process | None:
        words = (SHELL, SHIM, str(folder.path))
        pid = folder.shim_pid()
        if pid is None:  # It is only just beginning, or could not write it down.
            pid = next(iter(with_arguments(*words) or with_arguments(*OWN_PIDS, *words)), 0)
        shim = look_up(pid)
        if shim is None or not (has_arguments(pid, *words) or has_arguments(pid, *OWN_PIDS, *words)):
            return None
        return shim


_decoder: Final = msgspec.msgpack.Decoder(messages.FromAgent)


def has_keeper(folder: Path) -> bool:
    """Whether a supervisor looks after runs in this folder."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return any((folder / RUNS).iterdir())
    finally:
        os.close(lock)
    return False
