"""A command beside a task, as a process of the machine: its pipes or its terminal, and its end with all that it started."""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from wharf.node.drivers.port import CannotStart, CommandOrder, Stream
from wharf.node.supervisor.processes import find_process, list_pids, send_signal

COMMAND_MARK_VARIABLE: Final = "WHARF_COMMAND"
READ_BYTES: Final = 16 << 10
"""So that a piece fits into one message with all that is around it."""
MAX_INPUT_BYTES: Final = 256 << 10
SIGNAL_EXIT_CODE_BASE: Final = 128
MAX_KILL_PASSES: Final = 20
TERMINAL_SESSION_COMMAND: Final = ("/usr/bin/setsid", "--ctty", "--")
"""What follows leads a session, whose terminal its input is."""


class Terminal:
    """The master's end of a pseudo terminal."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        os.set_blocking(handle, False)

    async def read(self) -> bytes:
        while True:
            try:
                return os.read(self._handle, READ_BYTES)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await _ready(self._handle, loop.add_reader, loop.remove_reader)
            except OSError as error:
                if error.errno in (errno.EIO, errno.EBADF):  # Nobody holds the other end any more.
                    return b""
                raise

    async def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._handle, data) :]
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await _ready(self._handle, loop.add_writer, loop.remove_writer)
            except OSError:
                return

    def resize(self, height: int, width: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", height & 0xFFFF, width & 0xFFFF, 0, 0))

    def hang_up(self) -> bool:
        """As a line that is cut: who leads its session hears it, and who is in front. False: nobody has it yet."""
        try:
            if not (group := os.tcgetpgrp(self._handle)):
                return False
            leader = os.getsid(group)
        except OSError:
            return False
        for told in dict.fromkeys((leader, group)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(told, signal.SIGHUP)
        return True

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


async def _ready(handle: int, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
    is_ready = asyncio.Event()
    add(handle, is_ready.set)
    try:
        await is_ready.wait()
    finally:
        remove(handle)


class CommandProcess:
    def __init__(self, name: str, process: asyncio.subprocess.Process, terminal: Terminal | None) -> None:
        self._name = name
        self._process = process
        self._terminal = terminal

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self, stream: Stream) -> bytes:
        if self._terminal is not None:
            return await self._terminal.read() if stream == "stdout" else b""
        pipe = self._process.stdout if stream == "stdout" else self._process.stderr
        assert pipe is not None, "both were asked for"
        return await pipe.read(READ_BYTES)

    async def write(self, data: bytes) -> None:
        if self._terminal is not None:
            await self._terminal.write(data)
            return
        pipe = self._process.stdin
        assert pipe is not None, "it was asked for"
        with contextlib.suppress(ConnectionError, RuntimeError):  # It hears nothing any more.
            pipe.write(data)
            await pipe.drain()

    async def close_input(self) -> None:
        if self._terminal is not None:
            if not self._terminal.hang_up():  # It is only just beginning, or has ended.
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGHUP)
            return
        pipe = self._process.stdin
        assert pipe is not None, "it was asked for"
        pipe.close()

    def resize(self, height: int, width: int) -> None:
        if self._terminal is not None:
            self._terminal.resize(height, width)

    async def wait(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else SIGNAL_EXIT_CODE_BASE - code

    async def end(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        # What left its group carries the mark; what is forked meanwhile is there at the next look.
        for _ in range(MAX_KILL_PASSES):
            if not kill_marked_processes(f"{COMMAND_MARK_VARIABLE}={self._name}", is_exact_match=True):
                break
            await asyncio.sleep(0)
        await self._process.wait()
        if self._terminal is not None:
            self._terminal.close()


class NamespaceEntry(NamedTuple):
    """The way to where a task is that sees another machine than we do."""

    command_prefix: tuple[str, ...]
    """In front of the command; it takes its environment and its rights from them."""
    environment: dict[str, str]
    folder: str = "/"
    """Where it begins."""
    input_descriptors: tuple[int, ...] = ()
    """Files that they read."""
    is_taking_terminal: bool = False
    """By what they say the command leads a session itself, whose terminal that is which it finds as its input: nobody else
    may have it before."""


async def start_command(order: CommandOrder, program: str, *, owner: Path, cgroup: Path | None) -> CommandProcess:
    """`owner`: whose process's rights it gets. `group`: the control group that it belongs to. Raises CannotStart."""
    way = NamespaceEntry((), {**order.environment, COMMAND_MARK_VARIABLE: order.name}, order.folder)
    begun = await _start(order, (program, *order.command[1:]), way, owner, _rights_of(owner))
    if cgroup is not None:
        with contextlib.suppress(OSError):  # It may be over.
            (cgroup / "cgroup.procs").write_text(str(begun.pid))
    return begun


async def start_command_in_namespace(order: CommandOrder, entry: NamespaceEntry, *, owner: Path) -> CommandProcess:
    """`owner`: whose process's terminal it is to be. Raises CannotStart."""
    return await _start(order, (*entry.command_prefix, *order.command), entry, owner, {})


async def _start(
    order: CommandOrder, words: tuple[str, ...], way: NamespaceEntry, owner: Path, rights: dict[str, Any]
) -> CommandProcess:
    given: dict[str, Any] = {"env": way.environment, "cwd": way.folder, "pass_fds": way.input_descriptors, **rights}
    pipe = asyncio.subprocess.PIPE
    with contextlib.ExitStack() as undone:
        terminal: Terminal | None = None
        try:
            if order.is_tty:
                master, slave = os.openpty()
                terminal = Terminal(master)
                undone.callback(terminal.close)
                terminal.resize(order.height or 24, order.width or 80)
                try:
                    _hand_over(slave, owner)
                    leads = () if way.is_taking_terminal else TERMINAL_SESSION_COMMAND
                    process = await asyncio.create_subprocess_exec(
                        *leads, *words, stdin=slave, stdout=slave, stderr=slave, start_new_session=not leads, **given
                    )
                finally:
                    os.close(slave)
            else:
                process = await asyncio.create_subprocess_exec(
                    *words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=READ_BYTES * 4, **given
                )
        except OSError as error:
            raise CannotStart(f"{order.command[0]} cannot be started: {error.strerror}") from error
        undone.pop_all()
    return CommandProcess(order.name, process, terminal)


def _hand_over(slave: int, owner: Path) -> None:
    """Raises OSError."""
    if (uid := owner.stat().st_uid) != os.geteuid():
        os.fchown(slave, uid, -1)


def _rights_of(owner: Path) -> dict[str, Any]:  # As a process is started with.
    """Those of a process, where they are not ours. Raises OSError."""
    found = owner.stat()
    if found.st_uid == os.geteuid():
        return {}
    lines = (owner / "status").read_text().splitlines()
    groups = next((line.split()[1:] for line in lines if line.startswith("Groups:")), [])
    return {"user": found.st_uid, "group": found.st_gid, "extra_groups": [int(each) for each in groups]}


def kill_marked_processes(mark: str, *, is_exact_match: bool) -> int:
    """How many there were with this mark in their environment, or one that begins so."""
    wanted, killed = os.fsencode(mark), 0
    for pid in list_pids():
        try:
            known = find_process(pid)
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if known is None:
            continue
        if any(each == wanted if is_exact_match else each.startswith(wanted) for each in environment):
            killed += send_signal(known, signal.SIGKILL, is_to_group=False)
    return killed
