"""Starts programs of the node agent: commands beside tasks, and helper programs such as git and plugins.

Tasks are started by the task supervisor, not here.
"""

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final, NamedTuple

from wharf.node.input_texts import open_input_texts
from wharf.world.pipes import connect_reading_end, connect_writing_end

CHECK_INTERVAL_S: Final = 0.5
"""Seconds between two calls of `check`."""
KILLED_END_S: Final = 2.0
"""How long a canceled start waits for the end of its killed program; a broken disk can delay the end."""
READ_BYTES: Final = 64 << 10
ENV_PATH: Final = "/usr/bin/env"


class ProgramResult(NamedTuple):
    """The exit code and the output of a program that has ended."""

    exit_code: int
    """Negative: the number of the signal that ended it."""
    output: bytes
    errors: bytes
    """What it printed on standard error."""


class ProgramIdentity(NamedTuple):
    """The user and the groups of a program."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class ChildProgram:
    """A running program, and the ends of its pipes that belong to this process.

    The event loop's own subprocesses are not used: with uvloop, a program inherits copies of its own pipes, so closing
    its standard output has no effect.
    """

    def __init__(self, pid: int, poll: Callable[[], int | None], pipes: tuple[int, int, int]) -> None:
        """`poll` returns the exit code once the program has ended. `pipes` are this end of its pipes; -1: no pipe."""
        self.pid = pid
        self.exit_code: int | None = None
        """The exit code; negative: the number of the signal that ended the program; None while it runs."""
        self._poll = poll
        self._pipes = list(pipes)
        self._end = asyncio.Event()
        self._pidfd = -1
        self._transports: list[asyncio.BaseTransport] = []
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    async def attach(self, *, buffer_bytes: int) -> None:
        """Watch for the end of the program and connect its pipes to the running loop. Raises OSError."""
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)
        if self._pipes[0] >= 0:
            self.stdin = await self._connect_writer()
        if self._pipes[1] >= 0:
            self.stdout = await self._connect_reader(1, buffer_bytes)
        if self._pipes[2] >= 0:
            self.stderr = await self._connect_reader(2, buffer_bytes)

    async def _connect_reader(self, number: int, buffer_bytes: int) -> asyncio.StreamReader:
        """Return a reader of the pipe with this number that buffers at most twice `buffer_bytes`."""
        reader = asyncio.StreamReader(limit=buffer_bytes)
        transport, _ = await connect_reading_end(lambda: asyncio.StreamReaderProtocol(reader), self._take_pipe(number))
        self._transports.append(transport)
        return reader

    async def _connect_writer(self) -> asyncio.StreamWriter:
        loop = asyncio.get_running_loop()
        # The protocol requires a reader; nothing is ever read from this end.
        transport, protocol = await connect_writing_end(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), self._take_pipe(0)
        )
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, loop)

    def _take_pipe(self, number: int) -> int:
        """Return the descriptor of the pipe, which its transport closes."""
        descriptor, self._pipes[number] = self._pipes[number], -1
        return descriptor

    def _reap(self) -> None:
        """Store the exit code of a program that has ended."""
        self.exit_code = self._poll()
        if self.exit_code is not None:
            self._stop_watching()
            self._end.set()

    def _stop_watching(self) -> None:
        """Stop watching for the end of the program. Repeated calls have no effect."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    async def wait(self) -> int:
        """Wait for the end of the program. Return its exit code; negative: the number of the signal that ended it."""
        await self._end.wait()
        assert self.exit_code is not None
        return self.exit_code

    def kill_group(self) -> None:
        """Kill all processes of the program's group, if it has any."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def send_signal(self, signal_number: int) -> None:
        """Send a signal to the program, unless it has ended."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)

    def close_pipes(self) -> None:
        """Close this end of all pipes. A process outside the program's group may hold the other ends."""
        for transport in self._transports:
            transport.close()
        for descriptor in self._pipes:
            if descriptor >= 0:
                os.close(descriptor)
        self._pipes = [-1, -1, -1]


async def start_program(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    folder: Path | str | None = None,
    streams: tuple[int, int, int] = (PIPE, PIPE, PIPE),
    input_texts: Sequence[str] = (),
    has_own_session: bool = True,
    identity: ProgramIdentity | None = None,
    buffer_bytes: int = READ_BYTES,
) -> ChildProgram:
    """Start a program. It inherits `streams` as standard input, output and errors, and nothing else.

    `streams` are descriptors, PIPE or DEVNULL. The program finds `input_texts` at FIRST_INPUT_DESCRIPTOR and after,
    and must close them. Without `identity`, it has the user and groups of this process; with `input_texts`, `identity`
    must be None. Raises OSError.
    """
    assert identity is None or not input_texts, "a program with input texts switches its user itself"
    poll: Callable[[], int | None]
    with ExitStack() as cleanup:
        child_streams, pipes = _create_pipes(streams, cleanup)
        try:
            if input_texts:
                pid = _spawn_with_texts(command, environment, folder, child_streams, input_texts, has_own_session)
                poll = partial(_poll_child, pid)
            else:
                process = _spawn(command, environment, folder, child_streams, has_own_session, identity)
                pid, poll = process.pid, process.poll
        except ValueError as error:
            reason = "an argument, a variable or a folder is a text that no program can receive, such as a zero byte"
            raise OSError(errno.EINVAL, reason) from error
    program = ChildProgram(pid, poll, pipes)
    try:
        await program.attach(buffer_bytes=buffer_bytes)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        program.close_pipes()
        with suppress(TimeoutError):
            async with asyncio.timeout(KILLED_END_S):
                await program.wait()
        raise
    return program


def _create_pipes(
    streams: tuple[int, int, int], cleanup: ExitStack
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the standard descriptors of a program, and this end of its pipes (-1: no pipe). Raises OSError.

    `cleanup` closes the program's ends, or all ends after an error.
    """
    theirs, ours = [-1, -1, -1], [-1, -1, -1]
    with ExitStack() as after_error:
        for number, stream in enumerate(streams):
            if stream == PIPE:
                reading, writing = os.pipe()
                theirs[number], ours[number] = (reading, writing) if number == 0 else (writing, reading)
                cleanup.callback(os.close, theirs[number])
                after_error.callback(os.close, ours[number])
            elif stream == DEVNULL:
                theirs[number] = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                cleanup.callback(os.close, theirs[number])
            else:
                theirs[number] = stream
        after_error.pop_all()
    return (theirs[0], theirs[1], theirs[2]), (ours[0], ours[1], ours[2])


def _spawn(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    folder: Path | str | None,
    streams: tuple[int, int, int],
    has_own_session: bool,
    identity: ProgramIdentity | None,
) -> subprocess.Popen[bytes]:
    """Start a program; returns once the program is loaded. Raises OSError."""
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        close_fds=True,
        start_new_session=has_own_session,
        user=None if identity is None else identity.uid,
        group=None if identity is None else identity.gid,
        extra_groups=None if identity is None else identity.groups,
    )


def _spawn_with_texts(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    folder: Path | str | None,
    streams: tuple[int, int, int],
    texts: Sequence[str],
    has_own_session: bool,
) -> int:
    """Start a program with input texts and return its process id. Raises OSError.

    Only `posix_spawn` can give the texts fixed descriptors. All other descriptors of this process are close-on-exec.
    """
    prefix = () if folder is None else (ENV_PATH, f"--chdir={folder}", "--")
    words = [*prefix, *map(str, command)]
    with open_input_texts(texts) as duplications:
        return os.posix_spawn(
            words[0],
            words,
            environment,
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(streams)),
                *duplications,
            ],
            setsid=has_own_session,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )


def _poll_child(pid: int) -> int | None:
    """Return the exit code of a child that has ended; None while it runs."""
    ended_pid, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended_pid else None


async def run_program(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    input_data: bytes = b"",
    folder: Path | None = None,
    input_texts: Sequence[str] = (),
    timeout_s: float | None = None,
    max_output_bytes: int | None = None,
    check: Callable[[], Awaitable[None]] | None = None,
    is_group_killed: bool = False,
) -> ProgramResult:
    """Run a program until it has ended and closed its output. Return its exit code and output.

    The program has a session of its own. If it must be stopped (timeout, cancellation, or an exception of `check`), it
    is killed with its process group. `is_group_killed`: the rest of the group is killed after a normal end too.
    `max_output_bytes`: only the end of each output is returned, because errors are at the end. `check` is called at
    intervals and once after the end. Raises OSError if the program cannot be started, and TimeoutError.
    """
    input_file = _create_input_file(input_data) if input_data else DEVNULL
    try:
        process = await start_program(
            command,
            environment=environment,
            folder=folder,
            streams=(input_file, PIPE, PIPE),
            input_texts=input_texts,
        )
    finally:
        if input_file >= 0:
            os.close(input_file)
    assert process.stdout is not None
    assert process.stderr is not None
    ending = asyncio.gather(
        _read_to_end(process.stdout, max_output_bytes), _read_to_end(process.stderr, max_output_bytes), process.wait()
    )
    try:
        async with asyncio.timeout(timeout_s):
            while check is not None and not ending.done():
                await asyncio.wait([ending], timeout=CHECK_INTERVAL_S)
                await check()
            output, errors, exit_code = await ending
    except BaseException:
        # Also if the program has ended: a child of it may still hold the pipes.
        process.kill_group()
        raise
    finally:
        ending.cancel()
        if is_group_killed:
            process.kill_group()
        process.close_pipes()
        await process.wait()
    return ProgramResult(exit_code, output, errors)


def _create_input_file(data: bytes) -> int:
    """Return the descriptor of an in-memory file with this content, positioned at its beginning.

    A program that ends before it has read its input would break a pipe, but not a file.
    """
    descriptor = os.memfd_create("wharf-input")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _read_to_end(stream: asyncio.StreamReader, max_bytes: int | None) -> bytes:
    """Return the content of a stream up to its end; with `max_bytes`, only the last bytes."""
    data = b""
    while chunk := await stream.read(READ_BYTES):
        data += chunk
        if max_bytes is not None:
            data = data[-max_bytes:]
    return data
