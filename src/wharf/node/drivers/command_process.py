"""Runs a command in a running task as a host process: its pipes or terminal, its environment, and its cleanup."""

import asyncio
import contextlib
import errno
import fcntl
import functools
import os
import signal
import struct
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from wharf.node.drivers.port import CannotStart, CommandOrder, Stream
from wharf.node.processes import kill_process, list_pids, read_environment
from wharf.node.subprocesses import ChildProgram, ProgramIdentity, start_program
from wharf.world.descriptors import list_limiting_words

COMMAND_MARK_VARIABLE: Final = "WHARF_COMMAND"
"""Environment variable by which the processes of a command are found and killed."""
READ_BYTES: Final = 16 << 10
"""Bytes read at a time; small enough to fit into one message of the exec stream."""
SIGNAL_EXIT_CODE_BASE: Final = 128
MAX_KILL_PASSES: Final = 20
"""How often to scan for marked processes; a process can fork while it is being killed."""
TERMINAL_SESSION_COMMAND: Final = ("/usr/bin/setsid", "--ctty", "--")
"""Command prefix that makes the command a session leader with its standard input as the controlling terminal."""


class Terminal:
    """The master end of a pseudo terminal."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        os.set_blocking(handle, False)

    async def read(self) -> bytes:
        """Return the next output of the terminal; empty when all processes have closed the other end."""
        while True:
            try:
                return os.read(self._handle, READ_BYTES)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await _wait_until_ready(self._handle, loop.add_reader, loop.remove_reader)
            except OSError as error:
                if error.errno in (errno.EIO, errno.EBADF):  # All processes have closed the other end.
                    return b""
                raise

    async def write(self, data: bytes) -> None:
        """Write all of `data`; the rest is dropped if the terminal is closed."""
        while data:
            try:
                data = data[os.write(self._handle, data) :]
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await _wait_until_ready(self._handle, loop.add_writer, loop.remove_writer)
            except OSError:
                return

    def resize(self, height: int, width: int) -> None:
        """Set the size of the terminal in characters; ignored if the terminal is closed."""
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", height & 0xFFFF, width & 0xFFFF, 0, 0))

    def hang_up(self) -> bool:
        """Send SIGHUP to the session leader and the foreground process group of the terminal.

        Return False if no process uses it as its controlling terminal yet.
        """
        try:
            if not (group := os.tcgetpgrp(self._handle)):
                return False
            leader = os.getsid(group)
        except OSError:
            return False
        for process_group in dict.fromkeys((leader, group)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process_group, signal.SIGHUP)
        return True

    def close(self) -> None:
        """Close the descriptor of the terminal. Repeated calls have no effect."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


async def _wait_until_ready(descriptor: int, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
    """Wait until `descriptor` is ready to read or write.

    `add` and `remove` are the event loop's functions that register and remove a callback, such as `add_reader`.
    """
    is_ready = asyncio.Event()
    add(descriptor, is_ready.set)
    try:
        await is_ready.wait()
    finally:
        remove(descriptor)


class CommandProcess:
    """A running command on the host that uses pipes, or a terminal if `terminal` is not None."""

    def __init__(self, name: str, process: ChildProgram, terminal: Terminal | None) -> None:
        self._name = name
        self._process = process
        self._terminal = terminal

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self, stream: Stream) -> bytes:
        """Return the next output; empty at the end. With a terminal, all output is `stdout`."""
        if self._terminal is not None:
            return await self._terminal.read() if stream == "stdout" else b""
        pipe = self._process.stdout if stream == "stdout" else self._process.stderr
        assert pipe is not None, "standard output and error are pipes"
        return await pipe.read(READ_BYTES)

    async def write(self, data: bytes) -> None:
        """Write all of `data` to the command's input; it is dropped if the command has closed its input."""
        if self._terminal is not None:
            await self._terminal.write(data)
            return
        pipe = self._process.stdin
        assert pipe is not None, "standard input is a pipe"
        with contextlib.suppress(ConnectionError, RuntimeError):  # The command has closed its input.
            pipe.write(data)
            await pipe.drain()

    async def close_input(self) -> None:
        """Close the input pipe; with a terminal, send SIGHUP to its processes instead."""
        if self._terminal is not None:
            if not self._terminal.hang_up():  # The command has just started, or has ended.
                self._process.send_signal(signal.SIGHUP)
            return
        pipe = self._process.stdin
        assert pipe is not None, "standard input is a pipe"
        pipe.close()

    def resize(self, height: int, width: int) -> None:
        """Set the size of the command's terminal in characters; ignored without a terminal."""
        if self._terminal is not None:
            self._terminal.resize(height, width)

    async def wait(self) -> int:
        """Return the exit code; 128 + signal number if a signal killed the command."""
        code = await self._process.wait()
        return code if code >= 0 else SIGNAL_EXIT_CODE_BASE - code

    async def end(self) -> None:
        """Kill the command with all processes that it started, and close its terminal.

        The processes are found by an environment variable. Repeated calls have no effect.
        """
        if self._process.exit_code is None:
            self._process.kill_group()
        # Processes that left the process group still carry the mark. The next pass finds processes forked meanwhile.
        for _ in range(MAX_KILL_PASSES):
            if not kill_marked_processes(f"{COMMAND_MARK_VARIABLE}={self._name}", is_exact_match=True):
                break
            await asyncio.sleep(0)
        await self._process.wait()
        self._process.close_pipes()
        if self._terminal is not None:
            self._terminal.close()


class NamespaceEntry(NamedTuple):
    """The programs that enter the namespaces of a task before its command starts, and their environment."""

    command_prefix: tuple[str, ...]
    """Put in front of the command. These programs set its environment and privileges."""
    environment: dict[str, str]
    """The environment of the programs in `command_prefix`."""
    folder: str = "/"
    """The working folder of the programs in `command_prefix`."""
    input_texts: tuple[str, ...] = ()
    """Texts that the programs in `command_prefix` read and close (`wharf.node.input_texts`)."""
    is_taking_terminal: bool = False
    """Whether `command_prefix` makes the command a session leader with its input as controlling terminal.

    A terminal can be the controlling terminal of one session only, so nothing may take it earlier.
    """
    open_terminal: Callable[[], tuple[int, int]] = os.openpty
    """Returns the descriptors of both ends of a new terminal, if the order requests one. Raises OSError."""


async def start_command(order: CommandOrder, program: str, *, proc_folder: Path, cgroup: Path | None) -> CommandProcess:
    """Start the command on the host with the user and groups of a running process, such as the task's.

    `proc_folder` is the folder of that process, such as /proc/4711. The command joins the control group `cgroup`,
    unless it no longer exists. Raises CannotStart.
    """
    entry = NamespaceEntry((), {**order.environment, COMMAND_MARK_VARIABLE: order.name}, order.folder)
    command = await _start_process(
        order, (program, *order.command[1:]), entry, proc_folder, _read_identity(proc_folder)
    )
    if cgroup is not None:
        with contextlib.suppress(OSError):  # The task may have ended.
            (cgroup / "cgroup.procs").write_text(str(command.pid))
    return command


async def start_command_in_namespace(
    order: CommandOrder, entry: NamespaceEntry, *, proc_folder: Path
) -> CommandProcess:
    """Start the command with the prefix of `entry`, which enters the task's namespaces. Raises CannotStart.

    A terminal belongs to the user of the process whose folder is `proc_folder`, such as /proc/4711.
    """
    return await _start_process(order, (*entry.command_prefix, *order.command), entry, proc_folder, None)


async def _start_process(
    order: CommandOrder,
    arguments: tuple[str, ...],
    entry: NamespaceEntry,
    proc_folder: Path,
    identity: ProgramIdentity | None,
) -> CommandProcess:
    """Start the program `arguments` with pipes, or with a new terminal if the order requests one.

    `proc_folder` is the folder in /proc of the process whose user owns the terminal. `identity` is that of
    the program, if it is not that of this agent. Raises CannotStart.
    """
    start = functools.partial(
        start_program,
        environment=entry.environment,
        folder=entry.folder,
        input_texts=entry.input_texts,
        identity=identity,
    )
    arguments = (*list_limiting_words(), *arguments)
    with contextlib.ExitStack() as cleanup:
        terminal: Terminal | None = None
        try:
            if order.is_tty:
                master, slave = entry.open_terminal()
                terminal = Terminal(master)
                cleanup.callback(terminal.close)
                terminal.resize(order.height or 24, order.width or 80)
                try:
                    _set_terminal_owner(slave, proc_folder)
                    session_command = () if entry.is_taking_terminal else TERMINAL_SESSION_COMMAND
                    process = await start(
                        (*session_command, *arguments),
                        streams=(slave, slave, slave),
                        has_own_session=not session_command,
                    )
                finally:
                    os.close(slave)
            else:
                process = await start(arguments, buffer_bytes=READ_BYTES * 4)
        except OSError as error:
            raise CannotStart(f"{order.command[0]} cannot be started: {error.strerror}") from error
        cleanup.pop_all()
    return CommandProcess(order.name, process, terminal)


def _set_terminal_owner(terminal_descriptor: int, proc_folder: Path) -> None:
    """Make the user of the process with the folder `proc_folder` in /proc the owner of the terminal. Raises OSError."""
    if (uid := proc_folder.stat().st_uid) != os.geteuid():
        os.fchown(terminal_descriptor, uid, -1)


def _read_identity(proc_folder: Path) -> ProgramIdentity | None:
    """Return user and groups of a running process; None if the process has the same user as this agent.

    `proc_folder` is the folder of the process, such as /proc/4711. Raises OSError.
    """
    status = proc_folder.stat()
    if status.st_uid == os.geteuid():
        return None
    lines = (proc_folder / "status").read_text().splitlines()
    groups = next((line.split()[1:] for line in lines if line.startswith("Groups:")), [])
    return ProgramIdentity(status.st_uid, status.st_gid, tuple(int(each) for each in groups))


def kill_marked_processes(environment_entry: str, *, is_exact_match: bool) -> int:
    """Kill all processes whose environment has the entry `environment_entry`, such as `NAME=value`; return their number.

    Without `is_exact_match`, entries that begin with `environment_entry` match too.
    """
    mark_bytes = os.fsencode(environment_entry)

    def is_target(pid: int) -> bool:
        """Return whether the environment of the process has a matching entry."""
        entries = read_environment(pid)
        return any(each == mark_bytes if is_exact_match else each.startswith(mark_bytes) for each in entries)

    return sum(kill_process(pid, functools.partial(is_target, pid)) for pid in list_pids() if is_target(pid))
