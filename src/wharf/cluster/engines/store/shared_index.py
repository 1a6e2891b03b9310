"""The newest index of the log in memory that the processes of one agent share, so that a default read needs no message.

The agent creates the memory and outlives every store process. The store writes each index before it acknowledges a
write of that index, so a process that reads the memory sees at least every write that was acknowledged before
(docs/adr/0119).
"""

import mmap
import os
from typing import Final

SHARED_INDEX_BYTES: Final = 8
"""One unsigned integer of 64 bits. Processors read and write it in one step, because it is aligned."""


def create_shared_index() -> int:
    """Return the descriptor of new shared memory; -1 if the system offers none. The caller must close the descriptor.

    The memory is in no file system, so a full disk cannot affect it.
    """
    try:
        descriptor = os.memfd_create("wharf-index", os.MFD_CLOEXEC)
    except OSError:
        return -1
    try:
        os.pwrite(descriptor, bytes(SHARED_INDEX_BYTES), 0)  # Allocates the page: a later access cannot fail.
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def open_shared_index(descriptor: int) -> "SharedIndex | None":
    """Return the shared memory that this process inherited as `descriptor`, which is closed; `None` for -1."""
    if descriptor < 0:
        return None
    try:
        return SharedIndex(descriptor)
    finally:
        os.close(descriptor)


class SharedIndex:
    """The newest index of the log. 0: no store has opened the log yet."""

    __slots__ = ("_values",)

    def __init__(self, descriptor: int) -> None:
        """The descriptor may be closed afterwards. Raises `OSError`."""
        self._values = memoryview(mmap.mmap(descriptor, SHARED_INDEX_BYTES)).cast("Q")

    def read(self) -> int:
        return self._values[0]

    def publish(self, index: int) -> None:
        """Set the index. Only the store process calls this."""
        self._values[0] = index
