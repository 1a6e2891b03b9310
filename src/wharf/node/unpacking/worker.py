"""The process that unpacks one archive: reads an order from standard input and writes its reply to standard output.

Unpacking needs much CPU time and holds the lock of the interpreter. In a process of its own it delays nothing in the agent, and
can be ended at any time.
"""

import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.unpacking.archives import unpack_archive
from wharf.node.unpacking.budget import CopyBudget
from wharf.node.unpacking.errors import ArtifactError
from wharf.node.unpacking.messages import UnpackOrder, UnpackReply

MAX_MEMORY_BYTES: Final = 1 << 30
"""Address space of the process; a few times what the limits of the formats permit."""
OUT_OF_MEMORY_SCORE: Final = 500
"""When the machine has no memory left, the kernel ends this process before the agent and its tasks."""
NICENESS: Final = 10
"""Running tasks and the agent get CPU time before an archive."""


def main() -> None:
    """Unpack the archive of the order on standard input."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OUT_OF_MEMORY_SCORE))
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=UnpackOrder)
    sys.stdout.buffer.write(msgspec.msgpack.encode(unpack(order)))


class _WorkerBudget(CopyBudget):
    """A budget of which nothing is left when the agent has ended, because the next agent unpacks the archive again."""

    def __init__(self, order: UnpackOrder) -> None:
        super().__init__(order.max_bytes, order.max_files, disk_folder=Path(order.root))
        self._agent_pid = order.agent_pid

    def require_needed(self) -> None:
        """Raise ArtifactError if the agent has ended."""
        if os.getppid() != self._agent_pid:
            raise ArtifactError("canceled")


def unpack(order: UnpackOrder) -> UnpackReply:
    """Unpack an archive and return the result."""
    folder = ConfinedFolder(Path(order.root), order.owner)
    try:
        folder.make_folder(order.destination)
        created = unpack_archive(
            Path(order.archive),
            order.archive_format,
            order.name,
            order.archive_folder,
            folder,
            order.destination,
            _WorkerBudget(order),
        )
    except ArtifactError as error:
        return UnpackReply(error=str(error), is_permanent=error.is_permanent)
    except ConfinedPathError as error:
        return UnpackReply(error=str(ArtifactError(str(error))), is_permanent=True)
    except OSError as error:
        return UnpackReply(error=f"its files cannot be read or written: {error.strerror or error}")
    except MemoryError:
        return UnpackReply(error=f"it needs more than {MAX_MEMORY_BYTES >> 20:,} MiB of memory", is_permanent=True)
    return UnpackReply(len(created), os.fsencode(created[0]) if created else b"")


if __name__ == "__main__":
    main()
