"""One run: a program, the shim that waits for it, and their pipes."""

import contextlib
import enum
import fcntl
import os
import re
import selectors
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from wharf.node.supervisor.log_pipe import LogPipe, OutputBlocked
from wharf.node.supervisor.messages import RunEnded, RunLogSettings, RunRefused, RunRequest
from wharf.node.supervisor.process_tracker import RUN_MARK_VARIABLE, ProcessTracker, build_mark
from wharf.node.supervisor.processes import (
    Process,
    find_marked_processes,
    find_process,
    is_marked,
    is_session_leader,
    open_pidfd,
    send_signal,
)
from wharf.node.supervisor.run_folder import RunFolder

SHELL: Final = "/bin/dash"
SHIM_PATH: Final = str(Path(__file__).with_name("shim.sh"))
SETSID_PATH: Final = "/usr/bin/setsid"
NSENTER_PATH: Final = "/usr/bin/nsenter"
PID_NAMESPACE_COMMAND: Final = ("/usr/bin/unshare", "--pid", "--")
"""The shim stays where it is; the first that it forks is the first of the new namespace."""
FIRST_INPUT_DESCRIPTOR: Final = 6
MIN_SPARE_DESCRIPTOR: Final = 64
SHELL_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class RunStage(enum.Enum):
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class SupervisedRun:
    """Made for a folder that is there. Register its descriptors by `watch`; `on_change` is called when it has begun or
    ended."""

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
        self._leftovers = tracker
        self._selector = selector
        self._on_change = on_change
        self._on_stuck = on_output_blocked
        self._shim: Process | None = None
        self._handles: dict[str, int] = {}
        self._pipes = [LogPipe(folder.path / name, log, stream) for name, stream in STREAMS]
        self._news = os.open(folder.path / "news", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        for pipe in self._pipes:
            selector.register(pipe.descriptor, selectors.EVENT_READ, lambda pipe=pipe: self._on_output(pipe))
        selector.register(self._news, selectors.EVENT_READ, self._on_news)

    # -- begin

    def spawn(self, order: RunRequest) -> None:
        """Raises OSError."""
        odd = [f"{name}={value}" for name, value in order.environment.items() if not SHELL_NAME.fullmatch(name)]
        environment = {name: value for name, value in order.environment.items() if SHELL_NAME.fullmatch(name)}
        entries = [word for file in self._leftovers.prepare_cgroups(self.name, order.limits) for word in ("0", file)]
        if order.limits.oom_score:
            entries += [str(order.limits.oom_score), "/proc/self/oom_score_adj"]
        # What is no name to a shell it would not hand on: such a thing goes in front of the command.
        words = [
            *(PID_NAMESPACE_COMMAND if order.has_own_pids else ()),
            SHELL,
            SHIM_PATH,
            str(self.folder.path),
            *entries,
            "--",
        ]
        words += [order.work_folder, *odd, *_before(order), *order.command]
        if order.has_own_pids:
            environment[ALONE_VARIABLE] = "1"
        if order.has_walls:
            self.folder.mark_sandbox_pending()
            environment[SANDBOX_VARIABLE] = str(self.folder.path)
        papers = [_paper(text) for text in order.papers]
        try:
            pid = os.posix_spawn(
                words[0],
                words,
                environment | {RUN_MARK_VARIABLE: self.name},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, paper, FIRST_INPUT_DESCRIPTOR + at) for at, paper in enumerate(papers)
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=DEFAULT_SIGNALS,
            )
        finally:
            for paper in papers:
                os.close(paper)
        shim = find_process(pid)
        if shim is not None:
            self._watch_shim(shim)
        if "shim" not in self._handles:  # Dead already: nobody will tell of it.
            self.refresh_state()

    def adopt(self, shim: Process | None) -> None:
        """Go on with what an earlier supervisor began. Without a shim the program has only itself."""
        if shim is not None:
            self._watch_shim(shim)
        self.refresh_state()

    def _watch_shim(self, shim: Process) -> None:
        self._shim = shim
        self._watch("shim", shim)

    def _watch(self, name: str, process: Process) -> bool:
        handle = open_pidfd(process)
        if handle is None:
            return False
        self._handles[name] = handle
        self._selector.register(handle, selectors.EVENT_READ, self.refresh_state)
        return True

    def _leave(self, name: str) -> None:
        """The handle of what is dead would be told of for ever."""
        if (handle := self._handles.pop(name, None)) is not None:
            self._selector.unregister(handle)
            os.close(handle)

    # -- see

    def _on_news(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._news, 4096)
        self.refresh_state()

    def _on_output(self, pipe: LogPipe) -> None:
        try:
            pipe.drain(is_complete=False)
        except OutputBlocked as stuck:
            self._selector.unregister(pipe.descriptor)
            self._on_stuck(self, str(stuck))

    def retry_output(self) -> None:
        """After the files could not be written."""
        for pipe in self._pipes:
            with contextlib.suppress(KeyError):
                self._selector.register(pipe.descriptor, selectors.EVENT_READ, lambda pipe=pipe: self._on_output(pipe))

    def refresh_state(self) -> None:
        """At all that is known of it; this may be done at any time."""
        if self.stage is RunStage.ENDED:
            return
        # Asked once, and first: a shim that dies after this moment is told of by its handle, and looked for again then.
        has_shim = self._is_shim_there()
        ended: RunEnded | RunRefused | None = self.folder.read_outcome()
        if self.stage is RunStage.STARTING:
            self._look_for_task(is_over=ended is not None, has_shim=has_shim)
        if ended is None and not has_shim:
            self._leave("shim")
            ended = self._outcome_without_shim()
        if ended is not None:
            self._end(self._refused_by_walls(ended) or ended)

    def _refused_by_walls(self, ended: RunEnded | RunRefused) -> RunRefused | None:
        """Where the program was never there, for the walls around it could not be made."""
        if self.stage is not RunStage.STARTING or not isinstance(ended, RunEnded):
            return None
        why = self.folder.read_sandbox_error()
        if not why and self.folder.is_sandbox_pending() and ended.is_known and not ended.signal:
            why = f"the walls around the task cannot be made: exit code {ended.exit_code}, see what its errors say"
        return RunRefused(self.name, why) if why else None

    def _look_for_task(self, *, is_over: bool, has_shim: bool) -> None:
        pid = self.folder.read_task_pid()
        if pid is None and not is_over and not has_shim:
            # The shim was killed between starting it and writing its number down.
            # By its mark it is found even before it has entered its group; what it started itself has later numbers.
            marked = frozenset({build_mark(self.name)})
            found = self._leftovers.list_processes(self.name) or [pid for pid, _ in find_marked_processes(marked)]
            pid = next(filter(is_session_leader, found), min(found, default=None))
        if pid is None:
            return
        if not is_over:
            # While the shim waits for it, its number cannot be given again.
            process = find_process(pid)
            known = self.folder.read_task()
            if process is not None and (process == known if known is not None else has_shim or self._is_ours(pid)):
                self.task = process
                if known is None:
                    with contextlib.suppress(OSError):  # Only for whoever comes after us and after the shim.
                        self.folder.write_task(process)
        if (has_shim or is_over) and self.folder.is_sandbox_missing():
            return  # It is told when they are made; if they cannot be, there never was a task.
        if self.task is not None or is_over or has_shim:
            self.stage = RunStage.RUNNING
            self._on_change(self)

    def _is_ours(self, pid: int) -> bool:
        return pid in self._leftovers.list_processes(self.name) or is_marked(pid, build_mark(self.name))

    def _is_shim_there(self) -> bool:
        return self._shim is not None and find_process(self._shim.pid) == self._shim

    def _outcome_without_shim(self) -> RunEnded | RunRefused | None:
        """The program may outlive the shim; when it is gone, nobody knows how it ended. None while it runs."""
        if self.task is not None and find_process(self.task.pid) == self.task:
            if "task" not in self._handles and not self._watch("task", self.task):
                return self._outcome_without_shim()
            return None
        if not self.folder.has_started():
            return RunRefused(self.name, "it was not begun: its shim was killed, or could not write into its folder")
        with contextlib.suppress(OSError):
            self.folder.write_unknown_outcome()
        return RunEnded(self.name, exit_code=-1, is_known=False)

    # -- end

    def _end(self, ended: RunEnded | RunRefused) -> None:
        if isinstance(ended, RunEnded) and self._leftovers.has_oom_kill(self.name):
            ended = replace(ended, is_out_of_memory=bool(ended.exit_code))
        self.stage = RunStage.ENDED
        self.end_message = ended
        self._kill_leftovers()
        if self.task is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.task.pid, signal.SIGKILL)
        self._close()
        self._on_change(self)

    def _close(self) -> None:
        for pipe in self._pipes:
            try:
                pipe.drain(is_complete=True)
            except OutputBlocked as stuck:
                self._on_stuck(self, str(stuck))
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe.descriptor)
            pipe.close()
        self._selector.unregister(self._news)
        os.close(self._news)
        if (shim := self._handles.get("shim")) is not None:
            # Its work is done; it only kept the pipes open until here.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(shim, signal.SIGKILL)
        for name in list(self._handles):
            self._leave(name)

    def signal(self, number: int) -> bool:
        """False where it must be tried again soon: until it leads a session the program is not what it is to be."""
        if self.stage is RunStage.STARTING:
            return False
        if self.stage is RunStage.ENDED or self.task is None:
            return True
        if not is_session_leader(self.task.pid):
            return find_process(self.task.pid) != self.task
        send_signal(self.task, number, is_to_group=True)
        return True

    def kill(self) -> None:
        """The program and all that it started. How it ended is told later, as ever."""
        if self.stage is RunStage.ENDED:
            return
        self._kill_leftovers()
        if self.task is not None:
            send_signal(self.task, signal.SIGKILL, is_to_group=is_session_leader(self.task.pid))

    def _kill_leftovers(self) -> None:
        self._leftovers.kill_processes(self.name, except_pids=() if self._shim is None else (self._shim.pid,))

    def discard(self) -> None:
        """Nothing was started after all."""
        self.stage = RunStage.ENDED
        self._close()
        self.forget()

    def forget(self) -> None:
        self._leftovers.forget_run(self.name)
        self.folder.remove()


def _before(order: RunRequest) -> list[str]:
    """What runs in front of the command, and becomes it."""
    words = [NSENTER_PATH, f"--net={order.network}", "--"] if order.network else []
    if order.leads_itself:
        return words
    return [*words, SETSID_PATH]


def _paper(text: str) -> int:
    """A file in memory, with a number that no paper is given at."""
    made = os.memfd_create("paper")
    try:
        os.write(made, text.encode())
        return fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, MIN_SPARE_DESCRIPTOR)
    finally:
        os.close(made)


ALONE_VARIABLE: Final = "WHARF_ALONE"
"""Tells the shim that it can start nothing more once its task has ended."""
SANDBOX_VARIABLE: Final = "WHARF_WALLS"
"""Tells those who make walls around the program where the folder of the run is."""
STREAMS: Final = (("out", "stdout"), ("err", "stderr"))
DEFAULT_SIGNALS: Final = [signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXFSZ]
