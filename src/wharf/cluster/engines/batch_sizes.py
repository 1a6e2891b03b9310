"""The sizes of the newest batches of a log, to find out which ones to discard when they are too large together."""

from collections import deque
from typing import Final

MAX_RETAINED_BYTES: Final = 256 * 1024 * 1024
"""How many bytes of batches a log retains for followers, beside the current records. Limits the disk that the log needs:
writes of 8 MB, such as large jobs, would fill gigabytes within the retention time. A follower that is further behind loads
the whole state."""
CHUNK_BYTES: Final = 1024 * 1024
"""Batches are counted together up to this size. Limits the memory of the counts to some hundred entries."""


class BatchSizes:
    """Counts the bytes of a log's batches. Batches are added in the order of their indexes."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._chunks: deque[tuple[int, int]] = deque()
        """The index of the last batch of each chunk, and the bytes of all its batches; oldest first."""

    def add_batch(self, index: int, size: int) -> None:
        """Count a batch, or more bytes of the newest batch."""
        self.total_bytes += size
        if self._chunks and (self._chunks[-1][1] < CHUNK_BYTES or self._chunks[-1][0] == index):
            size += self._chunks.pop()[1]
        self._chunks.append((index, size))

    def remove_up_to(self, index: int) -> None:
        """Stop counting batches up to this index. The rest of a chunk is counted until all its batches are discarded."""
        while self._chunks and self._chunks[0][0] <= index:
            self.total_bytes -= self._chunks.popleft()[1]

    def find_surplus_index(self, max_bytes: int) -> int:
        """Return the index up to which batches must be discarded so that at most `max_bytes` remain; 0 if none must.

        The newest batches stay, whatever their size.
        """
        remaining, index = self.total_bytes, 0
        for last_index, size in self._chunks:
            if remaining <= max_bytes or last_index == self._chunks[-1][0]:
                break
            remaining, index = remaining - size, last_index
        return index
