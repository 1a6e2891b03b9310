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
from wharf.node.supervisor.messages import MessageReader, encode_frame
from wharf.node.supervisor.process_tracker import ProcessTracker
from wharf.node.supervisor.processes import (
    Process,
    find_process,
    find_processes_by_arguments,
    has_arguments,
    read_boot_id,
)
from wharf.node.supervisor.run import PID_NAMESPACE_COMMAND, SHELL, SHIM_PATH, RunStage, SupervisedRun
from wharf.node.supervisor.run_folder import RunFolder, StoredRun
from wharf.node.supervisor.selector_loop import list_callbacks

log = logging.getLogger(__name__)

RUNS_FOLDER: Final = "runs"
SOCKET_FILE: Final = "supervisor.sock"
LOCK_FILE: Final = "supervisor.lock"
SIGNAL_RETRY_DELAY_S: Final = 0.005
OUTPUT_RETRY_DELAY_S: Final = 1.0
IDLE_TIMEOUT_S: Final = 20.0
"""With nothing to keep and nobody to tell, it ends after this while."""
RECEIVE_BYTES: Final = 262_144
SEND_TIMEOUT_S: Final = 5.0


class SupervisorRunning(Exception):
    """Another supervisor looks after this folder."""


class AgentConnection:
    """The connection to one agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.frames = MessageReader()
        self.is_connected = True
        self._said: list[bytes] = []

    def queue_message(self, message: msgspec.Struct) -> None:
        """With the next `send_all`."""
        self._said.append(encode_frame(message))

    def send_queued(self) -> None:
        if not self._said:
            return
        said, self._said = b"".join(self._said), []
        try:
            self.connection.sendall(said)
        except OSError:  # It is gone, or does not listen: the next one asks for everything.
            self.is_connected = False


class TaskSupervisor:
    def __init__(self, folder: Path, tracker: ProcessTracker) -> None:
        """Raises SupervisorRunning."""
        self._folder = folder
        self._leftovers = tracker
        self._runs: dict[str, SupervisedRun] = {}
        self._refused: dict[str, str] = {}
        self._agent: AgentConnection | None = None
        self._stuck: dict[str, SupervisedRun] = {}
        self._early: list[tuple[str, int]] = []
        """Signals for programs that are only just beginning."""
        self._is_to_end = False
        self._selector = selectors.DefaultSelector()
        (folder / RUNS_FOLDER).mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SupervisorRunning(f"another supervisor looks after {folder}") from None
        self._boot_id = read_boot_id()

    def run(self) -> None:
        """Until told to end, or until nobody needs it."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._adopt_all()
        listening = self._listen()
        self._selector.register(listening, selectors.EVENT_READ, lambda: self._welcome(listening))
        while not self._is_over():
            is_idle = not self._runs and self._agent is None
            wait_s = (
                SIGNAL_RETRY_DELAY_S
                if self._early
                else OUTPUT_RETRY_DELAY_S
                if self._stuck
                else IDLE_TIMEOUT_S
                if is_idle
                else None
            )
            heard = self._selector.select(wait_s)
            if is_idle and not heard:
                break
            for call in list_callbacks(self._selector, heard):
                call()
            self._reap()
            self._send_early()
            stuck, self._stuck = self._stuck, {}
            for run in stuck.values():
                run.retry_output()
            if self._agent is not None:
                self._agent.send_queued()
                if not self._agent.is_connected:
                    self._part_with(self._agent)
        listening.close()
        self._leftovers.sweep_unknown_runs(self._runs)
        with contextlib.suppress(OSError):
            (self._folder / SOCKET_FILE).unlink()

    def _is_over(self) -> bool:
        return self._is_to_end and all(run.stage is RunStage.ENDED for run in self._runs.values())

    def _listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        (self._folder / SOCKET_FILE).unlink(missing_ok=True)
        folder = os.open(self._folder, os.O_PATH | os.O_CLOEXEC)
        # The name of a socket is short; the folder's may be long.
        listening.bind(f"/proc/self/fd/{folder}/{SOCKET_FILE}")
        os.close(folder)
        (self._folder / SOCKET_FILE).chmod(0o600)
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
            agent = self._agent = AgentConnection(connection)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(agent))
            agent.queue_message(messages.Hello(os.getpid(), self._leftovers.name, self._leftovers.enforced_limits))
            for run in self._runs.values():
                self._tell_of(run)
            for name, why in self._refused.items():
                agent.queue_message(messages.RunRefused(name, why))
            agent.queue_message(messages.AllRunsSent())

    def _part_with(self, agent: AgentConnection) -> None:
        self._selector.unregister(agent.connection)
        agent.connection.close()
        if self._agent is agent:
            self._agent = None

    def _hear(self, agent: AgentConnection) -> None:
        if self._agent is not agent:
            return
        try:
            data = agent.connection.recv(RECEIVE_BYTES)
        except OSError:
            data = b""
        try:
            for frame in agent.frames.feed(data):
                self._obey(_decoder.decode(frame))
        except (messages.UndecodableMessage, msgspec.MsgspecError) as error:
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

    def _tell_of(self, run: SupervisedRun) -> None:
        if self._agent is None:
            return
        if run.end_message is not None:
            self._agent.queue_message(run.end_message)
        elif run.stage is RunStage.RUNNING:
            self._agent.queue_message(messages.RunBegun(run.name, run.task.pid if run.task is not None else 0))
        else:
            self._agent.queue_message(messages.RunStarting(run.name))

    # -- runs

    def _start(self, order: messages.RunRequest) -> None:
        known = self._runs.get(order.name)
        if known is not None:
            self._tell_of(known)
            return
        folder = RunFolder(self._folder / RUNS_FOLDER / order.name)
        try:
            folder.create(StoredRun(order.name, self._boot_id, order.log))
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

    def _run_of(self, folder: RunFolder, order: messages.RunLogSettings) -> SupervisedRun:
        run = SupervisedRun(
            folder, order, self._leftovers, self._selector, on_change=self._tell_of, on_output_blocked=self._on_stuck
        )
        self._runs[run.name] = run
        return run

    def _refuse(self, name: str, why: str) -> None:
        self._refused[name] = why
        if self._agent is not None:
            self._agent.queue_message(messages.RunRefused(name, why))

    def _forget(self, name: str) -> None:
        self._refused.pop(name, None)
        run = self._runs.get(name)
        if run is not None and run.stage is RunStage.ENDED:
            del self._runs[name]
            self._stuck.pop(name, None)
            run.forget()

    def _on_stuck(self, run: SupervisedRun, why: str) -> None:
        if run.name not in self._stuck:
            log.error("the output of %s cannot be written: %s; it is tried again", run.name, why)
        if run.stage is not RunStage.ENDED:
            self._stuck[run.name] = run

    def _adopt_all(self) -> None:
        for entry in sorted((self._folder / RUNS_FOLDER).iterdir()):
            folder = RunFolder(entry)
            try:
                self._adopt(folder)
            except (FileNotFoundError, msgspec.ValidationError, msgspec.DecodeError):
                folder.remove()  # The order is written last: nothing was started yet.
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                log.error("what is kept of %s cannot be read: %s", entry.name, error)
        self._leftovers.sweep_unknown_runs(self._runs)

    def _adopt(self, folder: RunFolder) -> None:
        kept = folder.read_stored_run()
        if kept.boot_id != self._boot_id:
            if folder.read_outcome() is None:  # Whatever it was, it ended with the machine.
                folder.write_unknown_outcome()
            self._run_of(folder, kept.log).adopt(None)
            return
        shim = self._shim_of(folder)
        if shim is None and not folder.has_started():
            # It was never started: whoever wants it says so again.
            folder.remove()
            return
        self._run_of(folder, kept.log).adopt(shim)

    @staticmethod
    def _shim_of(folder: RunFolder) -> Process | None:
        words = (SHELL, SHIM_PATH, str(folder.path))
        pid = folder.read_shim_pid()
        if pid is None:  # It is only just beginning, or could not write it down.
            pid = next(
                iter(
                    find_processes_by_arguments(*words) or find_processes_by_arguments(*PID_NAMESPACE_COMMAND, *words)
                ),
                0,
            )
        shim = find_process(pid)
        if shim is None or not (has_arguments(pid, *words) or has_arguments(pid, *PID_NAMESPACE_COMMAND, *words)):
            return None
        return shim


_decoder: Final = msgspec.msgpack.Decoder(messages.FromAgent)


def has_running_supervisor(folder: Path) -> bool:
    """Whether a supervisor looks after runs in this folder."""
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return any((folder / RUNS_FOLDER).iterdir())
    finally:
        os.close(lock)
    return False
