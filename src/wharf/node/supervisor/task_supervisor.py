"""The supervisor's event loop: one thread and one selector.

The supervisor runs as long as a run exists or an agent is connected. After each connect it reports the state of all
runs, so that a restarted agent misses nothing.
"""

import contextlib
import fcntl
import logging
import os
import selectors
import signal
import socket
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.processes import Process, find_process, is_session_leader, kill_process, read_boot_id
from wharf.node.supervisor import messages
from wharf.node.supervisor.log_pipe import PIPE_BYTES
from wharf.node.supervisor.process_tracker import ProcessTracker
from wharf.node.supervisor.run import RunStage, SupervisedRun, find_shims, is_shim_below, is_shim_of
from wharf.node.supervisor.run_folder import RunFolder, StoredRun
from wharf.node.supervisor.selector_loop import iter_callbacks
from wharf.world import RealWorld
from wharf.world.descriptors import allow_many_open_files
from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame
from wharf.world.unix_sockets import bind_private_socket

log = logging.getLogger(__name__)

RUNS_FOLDER: Final = "runs"
SOCKET_FILE: Final = "supervisor.sock"
LOCK_FILE: Final = "supervisor.lock"
SIGNAL_RETRY_DELAY_S: Final = 0.005
"""Delay before a signal for a starting program is sent again."""
OUTPUT_RETRY_DELAY_S: Final = 1.0
"""Delay before output is written again after an error, such as a full disk."""
MAX_UNWRITTEN_S: Final = 3_600.0
"""How long the output of an ended run waits for its log files to be writable, before it is discarded."""
MAX_UNWRITTEN_RUNS: Final = 100
"""Limit of ended runs whose output waits; each needs up to 512 KiB of kernel memory. The oldest output is discarded."""
IDLE_TIMEOUT_S: Final = 20.0
"""Seconds without runs and without an agent after which the supervisor exits."""
FOLDER_CHECK_INTERVAL_S: Final = 2.0
"""How often the supervisor checks that its folder still exists."""
MAX_FOLDER_ABSENCE_S: Final = 20.0
"""How long the folder may be missing, such as while its disk is mounted again, before the supervisor ends."""
RECEIVE_BYTES: Final = 262_144
_decoder: Final = msgspec.msgpack.Decoder(messages.FromAgent)
SEND_TIMEOUT_S: Final = 5.0
"""Limit for sending to a busy agent; log output waits meanwhile."""


class SupervisorRunning(Exception):
    """The error that another task supervisor already uses this folder."""


class AgentConnection:
    """The connection to one agent, with the messages that wait to be sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.frames = FrameDecoder(messages.MAX_FRAME_BYTES)
        self.is_connected = True
        self.wants_run_messages = False
        self._queued: list[bytes] = []

    def queue_message(self, message: msgspec.Struct) -> None:
        """Add a message to those that the next `send_queued` sends."""
        self._queued.append(encode_frame(message))

    def send_queued(self) -> None:
        """Send all queued messages. If that fails, mark the connection as closed."""
        if not self._queued:
            return
        data, self._queued = b"".join(self._queued), []
        try:
            self.connection.sendall(data)
        except OSError:  # The agent is gone or hangs. The next connection receives the state of all runs again.
            self.is_connected = False


class TaskSupervisor:
    """The task supervisor: starts runs for the agent, tracks them and reports their ends.

    A run is one start of a task.
    """

    def __init__(
        self,
        folder: Path,
        tracker: ProcessTracker,
        *,
        max_folder_absence_s: float = MAX_FOLDER_ABSENCE_S,
        max_open_files_of_programs: int | None = None,
    ) -> None:
        """Take the lock of the folder. Raises SupervisorRunning if another supervisor holds it."""
        self._folder = folder
        self._world = RealWorld()
        self._max_folder_absence_s = max_folder_absence_s
        self._last_check_s = self._absent_since_s = self._world.monotonic_s()
        self._is_stop_requested = False
        self._tracker = tracker
        self._runs: dict[str, SupervisedRun] = {}
        self._refused: dict[str, str] = {}
        self._agent: AgentConnection | None = None
        self._blocked_runs: dict[str, SupervisedRun] = {}
        """Runs with output that cannot be written at present."""
        self._run_messages: dict[str, str] = {}
        """The message about the output of each run that has one, until an agent has received it."""
        self._reported_runs: set[str] = set()
        """Runs whose message about their output an agent has received: there is only one for each run."""
        self._unwritten_since_s: dict[str, float] = {}
        """When each blocked run ended that has ended, the oldest first."""
        self._next_output_retry_s = 0.0
        self._runs_to_delete: set[str] = set()
        """Blocked runs that are deleted as soon as their output is written."""
        self._deaf_runs: set[str] = set()
        """Runs whose shim cannot notify this supervisor, because its pipe was missing. They are checked regularly."""
        self._pending_signals: list[tuple[str, int]] = []
        """Signals (run, number) for programs that are still starting."""
        self._is_shutting_down = False
        self._selector = selectors.DefaultSelector()
        (folder / RUNS_FOLDER).mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SupervisorRunning(f"another supervisor uses {folder}") from None
        self._boot_id = read_boot_id()
        # Each run needs up to seven open files.
        former_limit = allow_many_open_files()
        self._max_open_files_of_programs = (
            former_limit if max_open_files_of_programs is None else max_open_files_of_programs
        )

    def run(self) -> None:
        """Take over stored runs, then serve agents and runs.

        Returns when a requested shutdown is complete, after IDLE_TIMEOUT_S without runs and without an agent, and when
        the folder is gone: no agent could find this supervisor again. Runs then continue without a supervisor.
        """
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._listen_for_stop_requests()
        self._adopt_all()
        listener = self._listen()
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept_agent(listener))
        while not self._is_over():
            is_idle = not self._runs and self._agent is None
            wait_s = (
                SIGNAL_RETRY_DELAY_S
                if self._pending_signals
                else max(0.0, self._next_output_retry_s - self._world.monotonic_s())
                if self._blocked_runs
                else IDLE_TIMEOUT_S
                if is_idle
                else FOLDER_CHECK_INTERVAL_S
            )
            events = self._selector.select(wait_s)
            if (is_idle and not events) or self._is_folder_lost():
                break
            for call in iter_callbacks(self._selector, events):
                call()
            self._reap()
            self._send_pending_signals()
            self._retry_blocked_output()
            for name in list(self._deaf_runs):
                self._runs[name].refresh_state()
            if self._agent is not None:
                self._agent.send_queued()
                if not self._agent.is_connected:
                    self._disconnect(self._agent)
        listener.close()
        if self._is_shutting_down:
            for run in [run for run in self._blocked_runs.values() if run.stage is RunStage.ENDED]:
                self._discard_output(run)
        self._tracker.sweep_unknown_runs(self._runs)
        if self._owns_folder():
            with contextlib.suppress(OSError):
                (self._folder / SOCKET_FILE).unlink()

    def _listen_for_stop_requests(self) -> None:
        """Have SIGTERM wake the selector, so that `_handle_stop_request` is called outside of the signal handler."""
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        self._wakeup_sockets = reading, writing
        self._selector.register(reading, selectors.EVENT_READ, self._on_wakeup)

    def _on_wakeup(self) -> None:
        """Read the numbers of signals that have arrived, and handle a SIGTERM."""
        with contextlib.suppress(OSError):
            if signal.SIGTERM in self._wakeup_sockets[0].recv(4096):
                self._handle_stop_request()

    def _handle_stop_request(self) -> None:
        """End if no run exists; otherwise log why not: without a supervisor, tasks block when their pipes are full."""
        living = sum(run.stage is not RunStage.ENDED for run in self._runs.values())
        if living:
            log.warning("ignoring SIGTERM: tasks are running; stop their jobs, or send SIGKILL runs=%d", living)
        else:
            log.info("ending after SIGTERM")
            self._is_stop_requested = True

    def _owns_folder(self) -> bool:
        """Return whether the folder still contains the lock file that this supervisor has locked."""
        try:
            return os.path.samestat(os.stat(self._folder / LOCK_FILE), os.fstat(self._lock))
        except OSError:
            return False

    def _is_folder_lost(self) -> bool:
        """Return whether the folder has been missing, or has belonged to another supervisor, for too long.

        It is checked once in FOLDER_CHECK_INTERVAL_S.
        """
        now_s = self._world.monotonic_s()
        if now_s - self._last_check_s < FOLDER_CHECK_INTERVAL_S:
            return False
        self._last_check_s = now_s
        if self._owns_folder():
            self._absent_since_s = now_s
        if now_s - self._absent_since_s <= self._max_folder_absence_s:
            return False
        log.error("ending: the data folder of the node is gone; its tasks continue folder=%s", self._folder)
        return True

    def _is_over(self) -> bool:
        """Return whether a shutdown was requested and all runs have ended."""
        if self._is_stop_requested:
            return True
        return self._is_shutting_down and all(run.stage is RunStage.ENDED for run in self._runs.values())

    def _listen(self) -> socket.socket:
        """Create and return the listening socket for agents, to which only this user has access."""
        listener = bind_private_socket(self._folder / SOCKET_FILE)
        listener.listen(8)
        listener.setblocking(False)
        return listener

    def _reap(self) -> None:
        """Collect the exit status of dead shims that this supervisor started, so that they do not remain as zombies."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    # -- agents

    def _accept_agent(self, listener: socket.socket) -> None:
        """Accept the connection of an agent, which replaces the current one, and report all runs to it."""
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            if self._agent is not None:
                self._disconnect(self._agent)
            # Wait briefly for a busy agent, but do not let an agent that hangs stop the log output.
            connection.settimeout(SEND_TIMEOUT_S)
            agent = self._agent = AgentConnection(connection)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(agent))
            agent.queue_message(
                messages.Hello(
                    os.getpid(),
                    self._tracker.name,
                    self._tracker.enforced_limits,
                    answers_pings=True,
                    sends_run_messages=True,
                )
            )
            for run in self._runs.values():
                self._report_run(run)
            for name, why in self._refused.items():
                agent.queue_message(messages.RunRefused(name, why))
            agent.queue_message(messages.AllRunsSent())

    def _disconnect(self, agent: AgentConnection) -> None:
        """Close the connection to an agent and stop watching it."""
        self._selector.unregister(agent.connection)
        agent.connection.close()
        if self._agent is agent:
            self._agent = None

    def _receive(self, agent: AgentConnection) -> None:
        """Handle the messages that an agent has sent; disconnect at the end or after an invalid message."""
        if self._agent is not agent:
            return
        try:
            data = agent.connection.recv(RECEIVE_BYTES)
        except OSError:
            data = b""
        try:
            for frame in agent.frames.feed(data):
                self._handle_message(_decoder.decode(frame))
        except (FrameTooLong, msgspec.MsgspecError) as error:
            log.error("closing agent connection: undecodable message error=%s", error)
            data = b""
        if not data:
            self._disconnect(agent)

    def _handle_message(self, message: messages.FromAgent) -> None:
        """Carry out one request of the agent: start, signal, kill or delete a run, or shut down."""
        match message:
            case messages.StartRun(request):
                self._start(request)
            case messages.SignalRun(name, number):
                self._pending_signals.append((name, number))
                self._send_pending_signals()
            case messages.KillRun(name):
                if (run := self._runs.get(name)) is not None:
                    run.kill()
            case messages.ForgetRun(name):
                self._delete_run(name)
            case messages.Ping():
                if self._agent is not None:
                    self._agent.queue_message(messages.Pong())
            case messages.RequestRunMessages():
                if self._agent is not None:
                    self._agent.wants_run_messages = True
                    self._queue_run_messages()
            case messages.ShutDown():
                self._is_shutting_down = True

    def _send_pending_signals(self) -> None:
        """Send the pending signals to their programs. A signal for a program that is still starting remains pending."""
        pending, self._pending_signals = self._pending_signals, []
        for name, signal_number in pending:
            run = self._runs.get(name)
            if run is not None and not run.signal(signal_number):
                self._pending_signals.append((name, signal_number))

    def _report_run(self, run: SupervisedRun) -> None:
        """Queue a message with the current state of the run for the agent, if one is connected."""
        if self._agent is None:
            return
        if run.end_message is not None:
            self._agent.queue_message(run.end_message)
        elif run.stage is RunStage.RUNNING:
            self._agent.queue_message(messages.RunBegun(run.name, run.task.pid if run.task is not None else 0))
        else:
            self._agent.queue_message(messages.RunStarting(run.name))

    # -- runs

    def _start(self, request: messages.RunRequest) -> None:
        """Start a run; if a run of this name exists, report its state instead.

        A failure is reported to the agent as a refusal.
        """
        existing_run = self._runs.get(request.name)
        if existing_run is not None:
            self._report_run(existing_run)
            return
        folder = RunFolder(self._folder / RUNS_FOLDER / request.name)
        try:
            folder.create(StoredRun(request.name, self._boot_id, request.log))
            run = self._create_run(folder, request.log)
        except (OSError, ValueError) as error:
            folder.remove()
            reason = _describe_start_error(error)
            self._refuse(request.name, f"the run's folder cannot be created in the node's state folder: {reason}")
            return
        try:
            run.spawn(request, self._max_open_files_of_programs)
        except (OSError, ValueError) as error:  # ValueError: a text that no program can receive.
            del self._runs[request.name]
            run.discard()
            self._blocked_runs.pop(request.name, None)
            self._refuse(request.name, f"the program cannot be started: {_describe_start_error(error)}")

    def _create_run(self, folder: RunFolder, log_settings: messages.RunLogSettings) -> SupervisedRun:
        """Create the object for a run whose folder exists, and track it. Raises OSError."""
        run = SupervisedRun(
            folder,
            log_settings,
            self._tracker,
            self._selector,
            on_change=self._report_run,
            on_output_blocked=self._on_output_blocked,
        )
        self._runs[run.name] = run
        return run

    def _refuse(self, name: str, why: str) -> None:
        """Report that a run was not started. The refusal is stored for agents that connect later."""
        self._refused[name] = why
        if self._agent is not None:
            self._agent.queue_message(messages.RunRefused(name, why))

    def _delete_run(self, name: str) -> None:
        """Delete a refused or ended run with its files. A run that has not ended is left unchanged.

        A run with output that cannot be written is deleted later.
        """
        self._refused.pop(name, None)
        run = self._runs.get(name)
        if run is None or run.stage is not RunStage.ENDED:
            return
        if run.has_blocked_output:
            self._runs_to_delete.add(name)
            return
        del self._runs[name]
        self._runs_to_delete.discard(name)
        self._deaf_runs.discard(name)
        self._run_messages.pop(name, None)
        self._reported_runs.discard(name)
        run.delete()

    def _on_output_blocked(self, run: SupervisedRun, why: str) -> None:
        """Log that a run's log files cannot be written, and schedule a retry."""
        if run.name in self._blocked_runs:
            return
        log.error("task output cannot be written; retrying run=%s error=%s", run.name, why)
        if not self._blocked_runs:
            self._next_output_retry_s = self._world.monotonic_s() + OUTPUT_RETRY_DELAY_S
        self._blocked_runs[run.name] = run
        if run.name not in self._reported_runs:
            self._run_messages[run.name] = (
                f"output cannot be written to the log files: {why}; the task waits when it has printed up to {PIPE_BYTES >> 10} "
                "KiB more. Free space on the disk of the node, or remove what blocks the names of the log files"
            )
            self._queue_run_messages()

    def _queue_run_messages(self) -> None:
        """Queue the messages about runs for the agent, if one is connected that wants them."""
        if self._agent is None or not self._agent.wants_run_messages:
            return
        for name, text in self._run_messages.items():
            self._agent.queue_message(messages.RunMessage(name, text))
        self._reported_runs.update(self._run_messages)
        self._run_messages.clear()

    def _retry_blocked_output(self) -> None:
        """Write the output of blocked runs again, once in OUTPUT_RETRY_DELAY_S; discard what has waited for too long."""
        now_s = self._world.monotonic_s()
        if not self._blocked_runs or now_s < self._next_output_retry_s:
            return
        for name, run in list(self._blocked_runs.items()):
            run.retry_output()
            if not run.has_blocked_output:
                log.info("task output can be written again run=%s", name)
                self._remove_blocked_run(name)
            elif run.stage is RunStage.ENDED:
                self._unwritten_since_s.setdefault(name, now_s)
                if not run.has_log_folder() or now_s - self._unwritten_since_s[name] > MAX_UNWRITTEN_S:
                    self._discard_output(run)
        while len(self._unwritten_since_s) > MAX_UNWRITTEN_RUNS:
            self._discard_output(self._blocked_runs[next(iter(self._unwritten_since_s))])
        # Measured afterwards, because a slow disk must not leave the supervisor without time for anything else.
        self._next_output_retry_s = self._world.monotonic_s() + OUTPUT_RETRY_DELAY_S

    def _discard_output(self, run: SupervisedRun) -> None:
        """Discard the output of an ended run that could not be written, and log how much was lost."""
        log.error("output of an ended task is lost run=%s bytes=%d", run.name, run.discard_output())
        self._remove_blocked_run(run.name)

    def _remove_blocked_run(self, name: str) -> None:
        """Stop retrying to write the output of a run, and delete the run if that was requested meanwhile."""
        del self._blocked_runs[name]
        self._unwritten_since_s.pop(name, None)
        if name in self._runs_to_delete:
            self._delete_run(name)

    def _adopt_all(self) -> None:
        """Track the stored runs of an earlier supervisor, and kill the processes of all other runs.

        Folders of runs that were never started are deleted. A run whose folder cannot be read keeps its processes.
        """
        runs_folder = self._folder / RUNS_FOLDER
        # A fork of a shim has its command line for a moment, but only the shim leads a session.
        shims = {folder: pid for pid, folder in sorted(find_shims(), key=lambda each: is_session_leader(each[0]))}
        for entry in sorted(runs_folder.iterdir()):
            try:
                self._adopt(RunFolder(entry), shims)
            except (OSError, ValueError) as error:
                log.error("stored run cannot be read; its processes continue run=%s error=%s", entry.name, error)
        known_runs = {*self._runs, *os.listdir(runs_folder)}
        self._kill_unknown_shims(known_runs)
        self._tracker.sweep_unknown_runs(known_runs)

    def _kill_unknown_shims(self, known_runs: Collection[str]) -> None:
        """Kill the shims of runs that are not in `known_runs`: they are in no control group, and would wait forever.

        Shims of a former folder at the same path continue: they belong to a node whose data folder was lost.
        """
        runs_folder = self._folder / RUNS_FOLDER
        prefix = f"{runs_folder}/"
        for pid, folder in find_shims():
            is_unknown = folder.startswith(prefix) and folder[len(prefix) :] not in known_runs
            if is_unknown and is_shim_below(pid, runs_folder):
                kill_process(pid, partial(is_shim_of, pid, folder))

    def _adopt(self, folder: RunFolder, shims: Mapping[str, int]) -> None:
        """Track a stored run; delete its folder if the program was never started.

        After a restart of the machine, a run without an outcome gets an unknown one. If the files about its request are
        damaged, the program continues all the same. `shims` are the running shims by folder. Raises OSError.
        """
        shim = self._find_shim(folder, shims)
        try:
            stored_run = folder.read_stored_run()
        except (OSError, ValueError) as error:
            if shim is None and not folder.has_started():
                folder.remove()  # The file `order` is written last, so nothing was started.
                return
            log.error(
                "stored request of a run is damaged; its output goes to its folder run=%s error=%s", folder.name, error
            )
            stored_run = folder.describe_run(self._boot_id)
        if stored_run.boot_id != self._boot_id:
            if folder.read_outcome() is None:  # The program ended when the machine was restarted.
                folder.write_unknown_outcome()
            self._create_run(folder, stored_run.log).adopt(None)
            return
        if shim is None and not folder.has_started():
            # It was never started; the agent repeats its request.
            folder.remove()
            return
        missing_pipes = folder.restore_pipes()
        self._create_run(folder, stored_run.log).adopt(shim)
        if missing_pipes:
            log.error("pipes of a run were missing run=%s pipes=%s", folder.name, ", ".join(missing_pipes))
            self._deaf_runs.add(folder.name)

    @staticmethod
    def _find_shim(folder: RunFolder, shims: Mapping[str, int]) -> Process | None:
        """Return the running shim of a run; None if it does not run.

        It is found by its stored process id, or by its command line if it could not write its process id.
        """
        path = str(folder.path)
        pid = folder.read_shim_pid()
        return find_process(pid if pid is not None and is_shim_of(pid, path) else shims.get(path, 0))


def _describe_start_error(error: OSError | ValueError) -> str:
    """Return why a run cannot be started."""
    return str((isinstance(error, OSError) and error.strerror) or error)


def has_running_supervisor(folder: Path) -> bool:
    """Return whether a task supervisor uses this folder and has runs."""
    return _is_locked(folder) and any((folder / RUNS_FOLDER).iterdir())


def count_running_programs(folder: Path) -> int:
    """Return how many runs of the task supervisor that uses this folder have not ended; 0 if none uses it."""
    if not _is_locked(folder):
        return 0
    try:
        runs = [RunFolder(path) for path in (folder / RUNS_FOLDER).iterdir()]
    except OSError:
        return 0
    return sum(run.has_started() and run.read_outcome() is None for run in runs)


def _is_locked(folder: Path) -> bool:
    """Return whether a task supervisor holds the lock of this folder."""
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
