"""Checks an uploaded snapshot in a process of its own, which the kernel limits in memory and CPU time.

The api process starts it for each restore. So a large or hostile snapshot never holds the event loop of a server, and can use up no
memory but that of this process. `python -m wharf.agent.snapshots.check_process` is the process itself: it reads its order
from standard input, writes its reply to standard output, and ends early when its input ends.
"""

import asyncio
import contextlib
import os
import resource
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from wharf.cluster.engines.snapshot_file import SnapshotInfo, SnapshotLimits
from wharf.cluster.server.snapshot_check import DiskTooFull, check_snapshot
from wharf.cluster.server.snapshots import SnapshotFailed
from wharf.config.environment import ENVIRONMENT_PREFIX
from wharf.node.subprocesses import start_program

MAX_MEMORY_BYTES: Final = 1_500_000_000
"""Memory of the process. A snapshot of the largest supported cluster needs 200 MB; a thousand records of 16 MB that an older
program wrote into one slice need more, and are refused."""
MAX_CPU_S: Final = 600
"""CPU time of the process: thirty times that for the largest supported cluster."""
TIMEOUT_S: Final = 1_800.0
"""How long the process may take on a busy machine or a slow disk."""
MAX_REPLY_BYTES: Final = 1_000_000
NICENESS: Final = 10
"""The processes of the server run before this one when the machine is busy."""
OUT_OF_MEMORY_SCORE: Final = 500
"""When the machine has no memory left, the kernel ends this process before those of the server."""


class SnapshotCheckFailed(Exception):
    """The check could not be finished, for a reason that is not the snapshot. The message says why."""


class SnapshotCheckOrder(msgspec.Struct, frozen=True):
    """What to check, and where to write the checked records."""

    source: str
    target: str
    limits: SnapshotLimits
    name: str
    wrapping_keys: Sequence[str]
    """The fingerprints of the keys that this server has for the keyring."""


class SnapshotCheckReply(msgspec.Struct, frozen=True):
    """The result of a check: what the checked file contains, or why the snapshot was refused."""

    info: SnapshotInfo | None = None
    refusal: str = ""
    failure: str = ""
    """Why the check could not be finished, if the reason is not the snapshot."""


async def run_check(order: SnapshotCheckOrder) -> SnapshotInfo:
    """Check a snapshot in a new process, and return what the checked file contains.

    Raises `SnapshotFailed` if the snapshot cannot be restored, and `SnapshotCheckFailed` otherwise. The process ends with this call.
    """
    try:
        program = await start_program(
            [sys.executable, "-P", "-m", "wharf.agent.snapshots.check_process"],
            environment={name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)},
            streams=(asyncio.subprocess.PIPE, asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL),
            buffer_bytes=MAX_REPLY_BYTES,
        )
    except OSError as error:
        raise SnapshotCheckFailed(f"cannot start a process to check the snapshot: {error.strerror}") from error
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.suppress(ConnectionError):  # The process has ended; its exit code shows why.
                program.stdin.write(msgspec.json.encode(order) + b"\n")
                await program.stdin.drain()
            data = await program.stdout.read(MAX_REPLY_BYTES)
            while part := await program.stdout.read(MAX_REPLY_BYTES):
                data += part
            exit_code = await program.wait()
    except TimeoutError:
        raise SnapshotCheckFailed(f"checking the snapshot took longer than {TIMEOUT_S:g} s") from None
    finally:
        if program.exit_code is None:
            program.kill_group()
        program.close_pipes()
        await asyncio.shield(program.wait())
    return _read_reply(data, exit_code)


def _read_reply(data: bytes, exit_code: int) -> SnapshotInfo:
    """Return the result in the reply. Raises `SnapshotFailed` or `SnapshotCheckFailed`."""
    if exit_code == -signal.SIGXCPU:
        raise SnapshotFailed(f"checking the snapshot needs more than {MAX_CPU_S} s of CPU time; nothing was changed")
    try:
        reply = msgspec.json.decode(data, type=SnapshotCheckReply)
    except msgspec.DecodeError:
        raise SnapshotCheckFailed(f"the process that checks the snapshot ended with exit code {exit_code}") from None
    if reply.failure:
        raise SnapshotCheckFailed(reply.failure)
    if reply.info is None:
        raise SnapshotFailed(reply.refusal)
    return reply.info


def main() -> None:
    """Execute the order on standard input."""
    _limit_process()
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=SnapshotCheckOrder)
    try:
        info = check_snapshot(
            Path(order.source),
            Path(order.target),
            order.limits,
            name=order.name,
            wrapping_keys=order.wrapping_keys,
            require_wanted=_exit_if_unwanted,
        )
        reply = SnapshotCheckReply(info)
    except DiskTooFull as error:
        reply = SnapshotCheckReply(failure=str(error))
    except SnapshotFailed as error:
        reply = SnapshotCheckReply(refusal=str(error))
    except OSError as error:
        reply = SnapshotCheckReply(failure=f"checking the snapshot failed: {error.strerror or error}")
    except MemoryError:
        reply = SnapshotCheckReply(
            refusal=f"checking the snapshot needs more than {MAX_MEMORY_BYTES:,} bytes of memory; nothing was changed"
        )
    sys.stdout.buffer.write(msgspec.json.encode(reply))
    sys.stdout.buffer.flush()


def _limit_process() -> None:
    """Limit memory and CPU time, and let other processes go first."""
    for kind, limit in ((resource.RLIMIT_DATA, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, MAX_CPU_S)):
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # A dump would contain the records.
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # The kernel has no such file, or forbids it.
        Path("/proc/self/oom_score_adj").write_text(str(OUT_OF_MEMORY_SCORE))


def _exit_if_unwanted() -> None:
    """End the process if the api process has ended or gave up."""
    readable, _, _ = select.select([sys.stdin.buffer], [], [], 0)
    if readable:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
