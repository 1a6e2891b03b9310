"""Runs helper programs such as git and plugins to their end. Tasks are started by the task supervisor, not here."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

CHECK_INTERVAL_S: Final = 0.5
"""Seconds between two calls of `check`."""
READ_BYTES: Final = 64 << 10


class ProgramResult(NamedTuple):
    """The exit code and the output of a program that has ended."""

    exit_code: int
    """Negative: the number of the signal that ended it."""
    output: bytes
    errors: bytes
    """What it printed on standard error."""


async def run_program(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    input_data: bytes = b"",
    folder: Path | None = None,
    open_descriptors: Collection[int] = (),
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
    pipe = asyncio.subprocess.PIPE
    input_file = _create_input_file(input_data) if input_data else asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=str(folder) if folder is not None else None,
            stdin=input_file,
            stdout=pipe,
            stderr=pipe,
            pass_fds=tuple(open_descriptors),
            start_new_session=True,
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
        _kill_group(process.pid)
        raise
    finally:
        ending.cancel()
        if is_group_killed:
            _kill_group(process.pid)
        # Close the pipes: a process outside the group may hold their other ends. asyncio has no public method for it.
        process._transport.close()  # type: ignore[attr-defined]
        await process.wait()
    return ProgramResult(exit_code, output, errors)


def _kill_group(group_id: int) -> None:
    """Kill all processes of a group, if it has any."""
    with suppress(ProcessLookupError):
        os.killpg(group_id, signal.SIGKILL)


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
