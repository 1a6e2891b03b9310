"""Opens zip archives that are not trusted.

The standard library reads the whole list of entries into memory, and decompresses some formats without limits.
"""

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

from wharf.node.unpacking.budget import CopyBudget
from wharf.node.unpacking.errors import ArtifactError

MAX_DIRECTORY_BYTES: Final = 4 << 20
"""The list of all entries. It costs at most 40 MB of memory and one second of CPU time; enough for 40,000 usual entries."""
_LOCAL_HEADER_BYTES: Final = 30
"""The smallest size of the header before the content of an entry."""
_USABLE_COMPRESSIONS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The library decompresses blocks of the others at once, whatever their size. Other programs rarely use or know them."""


@contextmanager
def open_zip(archive: Path, budget: CopyBudget) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive for reading; all that is read counts for the budget.

    Raises ArtifactError for a list of entries that is too large, and for entries that overlap or have an unusual
    compression. Raises BadZipFile and OSError.
    """
    with archive.open("rb") as file, zipfile.ZipFile(cast(IO[bytes], _BoundedZipSource(file, budget))) as opened:
        _check_entries(opened)
        yield opened


def _check_entries(opened: zipfile.ZipFile) -> None:
    """Raise ArtifactError if entries share content, so that they unpack to far more than the archive has."""
    end = 0
    for entry in sorted(opened.infolist(), key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise ArtifactError(f"{entry.filename[:200]} overlaps with another entry", is_permanent=True)
        end = entry.header_offset + _LOCAL_HEADER_BYTES + entry.compress_size
        if entry.compress_type not in _USABLE_COMPRESSIONS:
            raise ArtifactError(
                f"{entry.filename[:200]} has an unusual compression: pack it with the method deflate",
                is_permanent=True,
            )
    if end > opened.start_dir:
        raise ArtifactError("an entry overlaps with the list of entries", is_permanent=True)


class _BoundedZipSource(io.RawIOBase):
    """The file of an archive, for the library. No read of it is larger than the largest list of entries."""

    def __init__(self, file: BinaryIO, budget: CopyBudget) -> None:
        self._file = file
        self._budget = budget
        self._size = os.fstat(file.fileno()).st_size

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes; all that follow, if no size is given. Raises ArtifactError if they are too many."""
        rest = max(self._size - self.tell(), 0)
        count = rest if size is None or size < 0 else min(size, rest)
        if count > MAX_DIRECTORY_BYTES:
            raise ArtifactError(
                f"the list of entries has {count:,} bytes; the limit is {MAX_DIRECTORY_BYTES:,}", is_permanent=True
            )
        data = self._file.read(count)
        self._budget.count_read(len(data))
        return data
