"""Reads headers of tar archives that are not trusted: limits the memory and the time that a header may take.

The standard library reads extended headers and maps of sparse files as a whole, whatever size they claim. An archive of a few
megabytes could use gigabytes of memory.
"""

import tarfile
from typing import Final

MAX_EXTENDED_HEADER_BYTES: Final = 64 * 1024
"""Size of one extended header. It holds a name, a link target and a few attributes; Linux paths have up to 4 kB."""
MAX_GLOBAL_HEADER_BYTES: Final = 1024 * 1024
"""Size of all headers that hold for the whole archive, together; the library keeps their values in memory."""
SPARSE_TEXT: Final = "it contains a sparse file; pack it without sparse files"
_EXTENDED_TYPES: Final = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip


class BoundedTarInfo(tarfile.TarInfo):
    """An entry of an archive. Pass this class to `tarfile.open` as `tarinfo`. Reading a forbidden header raises `ReadError`."""

    def _proc_member(self, opened: tarfile.TarFile) -> tarfile.TarInfo:
        """Process the header of this entry, which was just read."""
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(SPARSE_TEXT)
        if self.type in _EXTENDED_TYPES and self.size > MAX_EXTENDED_HEADER_BYTES:
            raise tarfile.ReadError(
                f"it contains an extended header of {self.size:,} bytes, more than {MAX_EXTENDED_HEADER_BYTES:,}"
            )
        if self.type == tarfile.XGLTYPE:
            used = getattr(opened, "global_header_bytes", 0) + self.size
            opened.global_header_bytes = used  # type: ignore[attr-defined]  # The library has no place for it.
            if used > MAX_GLOBAL_HEADER_BYTES:
                raise tarfile.ReadError(f"its global headers have more than {MAX_GLOBAL_HEADER_BYTES:,} bytes")
        entry: tarfile.TarInfo = super()._proc_member(opened)  # type: ignore[misc]  # A private method without a type.
        return entry

    def _reject_sparse_file(self, *_: object) -> None:
        """Stop at a sparse file, whose map the library would read as a whole."""
        raise tarfile.ReadError(SPARSE_TEXT)

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _reject_sparse_file
