"""What one artifact may cost: bytes that are read and written, files, and the end when the artifact is no longer needed."""

import threading
from pathlib import Path
from typing import Final

from wharf.node.unpacking.errors import ArtifactError
from wharf.world.disk_space import measure_disk_space

MAX_SKIPPED_ENTRIES: Final = 1_000_000
"""Entries of an archive outside the requested folder; limits the time of a useless search."""
MAX_PATH_CHARS: Final = 4_096
"""The name of an entry; Linux has the same limit for paths."""
MAX_PATH_DEPTH: Final = 128
"""Folders in the name of an entry. Each is opened for each file, so that no link is followed."""
MAX_FOLDERS: Final = 16_384
"""Folders of an archive, also those that only names of files contain; protects the inodes of the node."""
DISK_CHECK_BYTES: Final = 16 << 20
"""Bytes written between two checks of the free disk space; far less than what must stay free."""


class CopyBudget:
    """How many bytes and files of an artifact may be read and written.

    Threads that work on the artifact call the methods at least once for each megabyte and each entry.
    """

    def __init__(
        self,
        max_bytes: int,
        max_files: int = 1,
        *,
        disk_folder: Path | None = None,
        content: str = "the unpacked content",
    ) -> None:
        """`disk_folder`: its disk must not become nearly full. `content` names what is counted, in errors."""
        self._content = content
        self.max_bytes, self._max_files = max_bytes, max_files
        self._written_bytes = self._read_bytes = 0
        self._files = self._skipped = 0
        self._folders: set[int] = set()
        """The hashes of the names of all folders, which need less memory than the names."""
        self._disk_folder = disk_folder
        self._next_disk_check = DISK_CHECK_BYTES
        self._canceled = threading.Event()

    def cancel(self) -> None:
        """Make all later calls of other methods fail, because the artifact is no longer needed."""
        self._canceled.set()

    def require_needed(self) -> None:
        """Raise ArtifactError if the artifact is no longer needed."""
        if self._canceled.is_set():
            raise ArtifactError("canceled")

    def count_file(self) -> None:
        """Count a file, folder or link that is about to be created. Raises ArtifactError if there are too many."""
        self._files += 1
        if self._files > self._max_files:
            raise ArtifactError(f"the content has more than {self._max_files:,} files", is_permanent=True)
        self.require_needed()

    def count_skipped(self) -> None:
        """Count an entry that is not unpacked. Raises ArtifactError if there are too many."""
        self._skipped += 1
        if self._skipped > MAX_SKIPPED_ENTRIES:
            raise ArtifactError(
                f"the archive has more than {MAX_SKIPPED_ENTRIES:,} entries outside the requested folder",
                is_permanent=True,
            )
        self.require_needed()

    def count_name(self, name: str) -> None:
        """Check the name of an entry, and count the folders in it, which may have no entries of their own.

        Raises ArtifactError if the name is too long, or there are too many folders.
        """
        if len(name) > MAX_PATH_CHARS:
            raise ArtifactError(
                f"the name of an entry has {len(name):,} characters; the limit is {MAX_PATH_CHARS:,}",
                is_permanent=True,
            )
        if name.count("/") > MAX_PATH_DEPTH:
            raise ArtifactError(f"{name[:200]} is in more than {MAX_PATH_DEPTH} folders", is_permanent=True)
        self._folders.update(hash(name[:end]) for end, char in enumerate(name) if char == "/")
        if len(self._folders) > MAX_FOLDERS:
            raise ArtifactError(f"the content has more than {MAX_FOLDERS:,} folders", is_permanent=True)

    def count_read(self, byte_count: int) -> None:
        """Count bytes of an archive that were read or decompressed, whether or not they are written to a file.

        Raises ArtifactError if there are too many.
        """
        self._read_bytes += byte_count
        self._check_bytes(self._read_bytes)

    def count_bytes(self, byte_count: int) -> None:
        """Count bytes that are about to be written.

        Raises ArtifactError if there are too many, or the disk is nearly full.
        """
        self._written_bytes += byte_count
        self._check_bytes(self._written_bytes)
        if self._written_bytes >= self._next_disk_check:
            self._next_disk_check = self._written_bytes + DISK_CHECK_BYTES
            self.check_disk()

    def check_disk(self) -> None:
        """Raise ArtifactError if the disk is nearly full, or the artifact is no longer needed. Raises OSError."""
        self.require_needed()
        if self._disk_folder is not None and (space := measure_disk_space(self._disk_folder)).is_nearly_full:
            raise ArtifactError(f"the disk of the node {space.describe_shortage()}")

    def _check_bytes(self, byte_count: int) -> None:
        """Raise ArtifactError if this is more than an artifact may have, or the artifact is no longer needed."""
        if byte_count > self.max_bytes:
            raise ArtifactError(f"{self._content} has more than {self.max_bytes:,} bytes", is_permanent=True)
        self.require_needed()
