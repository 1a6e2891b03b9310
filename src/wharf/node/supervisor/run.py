"""One run: a program, the shim process that waits for its end, and the pipes between them and the task supervisor."""

import contextlib
import enum
import os
import re
import selectors
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from wharf.node.input_texts import open_input_texts
from wharf.node.log_folder import LogFolder
from wharf.node.processes import (
    PROC,
    Process,
    find_marked_processes,
    find_process,
    is_marked,
    is_session_leader,
    list_pids,
    open_pidfd,
    read_arguments,
    send_signal,
)
from wharf.node.supervisor.log_pipe import LogPipe, OutputBlocked
from wharf.node.supervisor.messages import RunEnded, RunLogSettings, RunRefused, RunRequest
from wharf.node.supervisor.process_tracker import RUN_MARK_VARIABLE, ProcessTracker, build_mark
from wharf.node.supervisor.run_folder import RunFolder
from wharf.world.descriptors import limiting_open_files

SHELL: Final = "/bin/dash"
SHIM_PATH: Final = str(Path(__file__).with_name("shim.sh"))
SETSID_PATH: Final = "/usr/bin/setsid"
NSENTER_PATH: Final = "/usr/bin/nsenter"
PID_NAMESPACE_COMMAND: Final = ("/usr/bin/unshare", "--pid", "--")
"""Runs the shim so that its first child is the first process of a new PID namespace; the shim stays outside."""
SHELL_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
"""Variable names that a shell passes on to its children."""


ALONE_VARIABLE: Final = "WHARF_ALONE"
"""Set for the shim if its task has its own PID namespace: after the task's end the shim can start no more processes."""
SANDBOX_VARIABLE: Final = "WHARF_WALLS"
"""Set for the sandbox's launch script: the path of the run's folder."""
STREAMS: Final = (("out", "stdout"), ("err", "stderr"))
"""The pipes in the run's folder and the streams of their output."""
DEFAULT_SIGNALS: Final = [signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXFSZ]
"""Signals that the shim must not inherit as ignored."""


class RunStage(enum.Enum):
    """The stage of a run, which is one start of a task."""

    STARTING = "starting"  # the program has not started yet
    RUNNING = "running"  # the program has started
    ENDED = "ended"  # the outcome is known


class SupervisedRun:
    """A run (one start of a task) with its processes and pipes, whose descriptors are registered with the selector.

    `on_change` is called when the program has started and when it has ended, `on_output_blocked` when its log files
    cannot be written. The owner then calls `retry_output` from time to time, also after the end of the run.
    """

    def __init__(
        self,
        folder: RunFolder,
        log: RunLogSettings,
        tracker: ProcessTracker,
        selector: selectors.BaseSelector,
        *,
        on_change: Callable[["SupervisedRun"], None],
        on_output_blocked: Callable[["SupervisedRun", str], None],
    ) -> None:
        self.folder = folder
        self.name = folder.name
        self.stage = RunStage.STARTING
        self.task: Process | None = None
        self.end_message: RunEnded | RunRefused | None = None
        self._tracker = tracker
        self._selector = selector
        self._on_change = on_change
        self._on_output_blocked = on_output_blocked
        self._shim: Process | None = None
        self._handles: dict[str, int] = {}
        # Opened before the program starts, and for as long as the run exists, because the program can replace the folder.
        self._log_folder = LogFolder(Path(log.folder))
        if not log.is_off:
            with contextlib.suppress(OSError):
                self._log_folder.open()
        # Not before there is output, because the folder of an ended run may be deleted.
        self._log_folder.should_create = True
        self._blocked_pipes: list[LogPipe] = []
        """Pipes that are not read, because their output cannot be written at present."""
        self._is_output_closed = False
        self._pipes = [LogPipe(folder.path / name, self._log_folder, log, stream) for name, stream in STREAMS]
        self._notifications = os.open(folder.path / "news", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        for pipe in self._pipes:
            selector.register(pipe.descriptor, selectors.EVENT_READ, lambda pipe=pipe: self._on_output(pipe))
        selector.register(self._notifications, selectors.EVENT_READ, self._on_notification)

    # -- start

    def spawn(self, request: RunRequest, max_open_files: int) -> None:
        """Start the shim, which starts the program with this limit of open files. Raises OSError."""
        extra_variables = [
            f"{name}={value}" for name, value in request.environment.items() if not SHELL_NAME.fullmatch(name)
        ]
        environment = {name: value for name, value in request.environment.items() if SHELL_NAME.fullmatch(name)}
        control_writes = [
            word for file in self._tracker.prepare_cgroups(self.name, request.limits) for word in ("0", file)
        ]
        if request.limits.oom_score:
            control_writes += [str(request.limits.oom_score), "/proc/self/oom_score_adj"]
        # A shell does not pass on variables whose names it cannot use; `env` before the command sets them.
        command = [
            *(PID_NAMESPACE_COMMAND if request.has_own_pids else ()),
            SHELL,
            SHIM_PATH,
            str(self.folder.path),
            *control_writes,
            "--",
        ]
        command += [request.work_folder, *extra_variables, *_build_prefix(request), *request.command]
        if request.has_own_pids:
            environment[ALONE_VARIABLE] = "1"
        if request.has_sandbox:
            self.folder.mark_sandbox_pending()
            environment[SANDBOX_VARIABLE] = str(self.folder.path)
        with open_input_texts(request.input_texts) as file_actions, limiting_open_files(max_open_files):
            pid = os.posix_spawn(
                command[0],
                command,
                environment | {RUN_MARK_VARIABLE: self.name},
                file_actions=file_actions,
                setsid=True,
                setsigmask=[],
                setsigdef=DEFAULT_SIGNALS,
            )
        shim = find_process(pid)
        if shim is not None:
            self._watch_shim(shim)
        if "shim" not in self._handles:  # The shim is dead already, so no event will come.
            self.refresh_state()

    def adopt(self, shim: Process | None) -> None:
        """Begin to track a run that an earlier supervisor started.

        Without a shim, only the program itself is watched.
        """
        if shim is not None:
            self._watch_shim(shim)
        self.refresh_state()

    def _watch_shim(self, shim: Process) -> None:
        """Store the shim's process and watch for its end."""
        self._shim = shim
        self._watch("shim", shim)

    def _watch(self, name: str, process: Process) -> bool:
        """Watch for the end of a process, with `name` as the key of its pidfd.

        Return whether the process still exists.
        """
        handle = open_pidfd(process)
        if handle is None:
            return False
        self._handles[name] = handle
        self._selector.register(handle, selectors.EVENT_READ, self.refresh_state)
        return True

    def _stop_watching(self, name: str) -> None:
        """Stop watching the process with the key `name` and close its pidfd.

        The pidfd of a dead process stays readable and would wake the selector forever.
        """
        if (handle := self._handles.pop(name, None)) is not None:
            self._selector.unregister(handle)
            os.close(handle)

    # -- observe

    def _on_notification(self) -> None:
        """Discard the shim's notification, then read the run's files for changes."""
        with contextlib.suppress(OSError):
            os.read(self._notifications, 4096)
        self.refresh_state()

    def _on_output(self, pipe: LogPipe) -> None:
        """Move output from the pipe to the log files; stop reading the pipe if they cannot be written."""
        try:
            pipe.move_available()
        except OutputBlocked as blocked:
            self._selector.unregister(pipe.descriptor)
            self._blocked_pipes.append(pipe)
            self._on_output_blocked(self, str(blocked))

    @property
    def has_blocked_output(self) -> bool:
        """Whether output waits in a pipe, because the log files cannot be written at present."""
        return bool(self._blocked_pipes)

    def retry_output(self) -> None:
        """Write the output that waits in blocked pipes. What cannot be written still waits.

        After the end of the run, the pipes are closed when everything is written.
        """
        for pipe in list(self._blocked_pipes):
            try:
                if self.stage is RunStage.ENDED:
                    pipe.move_pending()
                else:
                    pipe.move_available()
            except OutputBlocked:
                continue
            self._blocked_pipes.remove(pipe)
            if self.stage is not RunStage.ENDED:
                self._selector.register(pipe.descriptor, selectors.EVENT_READ, lambda pipe=pipe: self._on_output(pipe))
        if self.stage is RunStage.ENDED and not self._blocked_pipes:
            self._close_output()

    def has_log_folder(self) -> bool:
        """Return whether the folder of the allocation still exists, in which the log folder is."""
        return self._log_folder.has_trusted_folder()

    def discard_output(self) -> int:
        """Discard the output of an ended run that could not be written. Return its number of bytes."""
        lost_bytes = sum(pipe.count_pending_bytes() for pipe in self._blocked_pipes)
        self._blocked_pipes.clear()
        self._close_output()
        return lost_bytes

    def refresh_state(self) -> None:
        """Read the run's files and processes, update the stage, and report a start or an end.

        May be called at any time. Does nothing after the end.
        """
        if self.stage is RunStage.ENDED:
            return
        # Checked once, before the files are read: if the shim dies later, its pidfd triggers another check.
        has_shim = self._is_shim_running()
        ended: RunEnded | RunRefused | None = self.folder.read_outcome()
        if self.stage is RunStage.STARTING:
            self._find_task(is_over=ended is not None, has_shim=has_shim)
        if ended is None and not has_shim:
            self._stop_watching("shim")
            ended = self._find_outcome_without_shim()
        if ended is not None:
            self._end(self._find_sandbox_refusal(ended) or ended)

    def _find_sandbox_refusal(self, ended: RunEnded | RunRefused) -> RunRefused | None:
        """Return a refusal if the run ended because its sandbox could not be set up; otherwise None."""
        if self.stage is not RunStage.STARTING or not isinstance(ended, RunEnded):
            return None
        why = self.folder.read_sandbox_error()
        if not why and self.folder.is_sandbox_pending() and ended.is_known and not ended.signal:
            why = f"the task's sandbox cannot be set up: exit code {ended.exit_code}; see the task's stderr"
        return RunRefused(self.name, why) if why else None

    def _find_task(self, *, is_over: bool, has_shim: bool) -> None:
        """Find the program's process, store it, and move to the stage RUNNING.

        Nothing changes if the process is not found or the sandbox is not ready. `is_over`: the outcome is known.
        `has_shim`: the shim is running.
        """
        stored = self.folder.read_task()
        pid = self.folder.read_task_pid()
        if pid is None and stored is not None:  # The shim's file is damaged.
            pid = stored.pid
        if pid is None and not is_over and not has_shim:
            # The shim was killed between starting the program and writing its process id.
            # The mark finds it even before it enters its control group. Its children have higher process ids.
            run_marks = frozenset({build_mark(self.name)})
            pids = self._tracker.list_processes(self.name) or [pid for pid, _ in find_marked_processes(run_marks)]
            pid = next(filter(is_session_leader, pids), min(pids, default=None))
        if pid is None:
            return
        if not is_over:
            # While the shim waits for the process, its id cannot be reused.
            process = find_process(pid)
            if process is not None and (
                process == stored if stored is not None else has_shim or self._belongs_to_run(pid)
            ):
                self.task = process
                if stored is None:
                    with contextlib.suppress(OSError):  # Needed only by a later supervisor that finds no shim.
                        self.folder.write_task(process)
        if (has_shim or is_over) and self.folder.is_sandbox_missing():
            return  # The shim notifies when the sandbox is ready. If that fails, the program never ran.
        if self.task is not None or is_over or has_shim:
            self.stage = RunStage.RUNNING
            self._on_change(self)

    def _belongs_to_run(self, pid: int) -> bool:
        """Return whether the process is in the run's control group or has the run's entry in its environment."""
        return pid in self._tracker.list_processes(self.name) or is_marked(pid, build_mark(self.name))

    def _is_shim_running(self) -> bool:
        """Return whether the run's shim process exists and is not a zombie."""
        return self._shim is not None and find_process(self._shim.pid) == self._shim

    def _find_outcome_without_shim(self) -> RunEnded | RunRefused | None:
        """Return the outcome after the shim has died; None while the program still runs, whose end is then watched.

        If the program has ended too, its exit code is lost, and an unknown outcome is stored.
        """
        if self.task is not None and find_process(self.task.pid) == self.task:
            if "task" not in self._handles and not self._watch("task", self.task):
                return self._find_outcome_without_shim()
            return None
        if not self.folder.has_started():
            return RunRefused(
                self.name, "the program was not started: its shim was killed or could not write to the run's folder"
            )
        with contextlib.suppress(OSError):
            self.folder.write_unknown_outcome()
        return RunEnded(self.name, exit_code=-1, is_known=False)

    # -- end the run

    def _end(self, outcome: RunEnded | RunRefused) -> None:
        """Kill the remaining processes of the run, write the rest of its output, and report the outcome."""
        if isinstance(outcome, RunEnded) and self._tracker.has_oom_kill(self.name):
            outcome = replace(outcome, is_out_of_memory=True)
        self.stage = RunStage.ENDED
        self.end_message = outcome
        self._kill_leftovers()
        if self.task is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.task.pid, signal.SIGKILL)
        self._close()
        self._on_change(self)

    def _close(self) -> None:
        """Move the remaining output to the log files and stop watching all descriptors.

        Output that cannot be written stays in its pipe for `retry_output`.
        """
        for pipe in self._pipes:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe.descriptor)
            if pipe not in self._blocked_pipes:
                try:
                    pipe.move_pending()
                except OutputBlocked as blocked:
                    self._blocked_pipes.append(pipe)
                    self._on_output_blocked(self, str(blocked))
        # The folder of an ended allocation may be deleted, and must not appear again.
        self._log_folder.should_create = False
        self._selector.unregister(self._notifications)
        os.close(self._notifications)
        # The pidfd of a dead shim would wake the selector for ever. It is still needed to kill the shim.
        for handle in self._handles.values():
            self._selector.unregister(handle)
        self.retry_output()

    def _close_output(self) -> None:
        """Close the pipes and the log folder, and kill the shim, which waited only to keep the pipes open.

        Repeated calls have no effect.
        """
        if self._is_output_closed:
            return
        self._is_output_closed = True
        for pipe in self._pipes:
            pipe.close()
        self._log_folder.close()
        if (shim := self._handles.get("shim")) is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(shim, signal.SIGKILL)
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def signal(self, signal_number: int) -> bool:
        """Send a signal to the program's process group. Return False if the caller must try again soon.

        That is before the process has become a session leader, because it is not the program yet.
        """
        if self.stage is RunStage.STARTING:
            return False
        if self.stage is RunStage.ENDED or self.task is None:
            return True
        if not is_session_leader(self.task.pid):
            return find_process(self.task.pid) != self.task
        send_signal(self.task, signal_number, is_to_group=True)
        return True

    def kill(self) -> None:
        """Kill the program and all processes that it started. The end is reported later through `on_change`."""
        if self.stage is RunStage.ENDED:
            return
        self._kill_leftovers()
        if self.task is not None:
            send_signal(self.task, signal.SIGKILL, is_to_group=is_session_leader(self.task.pid))

    def _kill_leftovers(self) -> None:
        """Kill all processes of the run except the shim."""
        self._tracker.kill_processes(self.name, except_pids=() if self._shim is None else (self._shim.pid,))

    def discard(self) -> None:
        """Mark the run as ended after a failed start, close its descriptors and delete its folder."""
        self.stage = RunStage.ENDED
        self._close()
        self.discard_output()
        self.delete()

    def delete(self) -> None:
        """Delete the run's control groups and its folder. The run must have ended, and its output must be written."""
        self._tracker.delete_run(self.name)
        self.folder.remove()


def _build_prefix(request: RunRequest) -> list[str]:
    """Return the command prefix that joins the requested network namespace and starts a new session.

    The session part is left out if the command does that itself.
    """
    command = [NSENTER_PATH, f"--net={request.network}", "--"] if request.network else []
    if request.is_session_leader:
        return command
    return [*command, SETSID_PATH]


def find_shims() -> Iterator[tuple[int, str]]:
    """Yield (process id, folder of the run) for each shim on this machine."""
    for pid in list_pids():
        if folder := _read_shim_folder(pid):
            yield pid, folder


def is_shim_of(pid: int, folder: str) -> bool:
    """Return whether the process is the shim of the run with this folder."""
    return _read_shim_folder(pid) == folder


def is_shim_below(pid: int, runs_folder: Path) -> bool:
    """Return whether the folder of the shim is or was in this very folder, and not in a former one at the same path."""
    try:
        return os.path.samestat(os.stat(PROC / str(pid) / "cwd" / ".."), os.stat(runs_folder))
    except OSError:
        return False


def _read_shim_folder(pid: int) -> str:
    """Return the folder of the run if the process is a shim; otherwise an empty text."""
    words = read_arguments(pid)
    if tuple(words[: len(PID_NAMESPACE_COMMAND)]) == PID_NAMESPACE_COMMAND:
        words = words[len(PID_NAMESPACE_COMMAND) :]
    return words[2] if words[:2] == [SHELL, SHIM_PATH] and len(words) > 2 else ""
