"""Reads headers of tar archives that are not trusted: limits the memory and the time that a header may take.

The standard library reads extended headers and maps of sparse files as a whole, whatever size they claim, and searches them with
patterns whose time grows with the square of the size. An archive of a few kilobytes could use gigabytes of memory, or stop all
threads of the process for seconds.
"""

import tarfile
from typing import Final, NoReturn, Self

MAX_EXTENDED_HEADER_BYTES: Final = 64 * 1024
"""Size of one extended header. It holds a name, a link target and a few attributes; Linux paths have up to 4 kB."""
MAX_EXTENDED_HEADERS: Final = 16
"""Extended headers before one entry. Usual are at most three; the library calls itself for each of them."""
MAX_NUMBER_CHARS: Final = 32
"""Characters of a number in an extended header, such as a time with nanoseconds."""
SPARSE_TEXT: Final = "it contains a sparse file; pack it without sparse files"
_DAMAGED_TEXT: Final = "it contains a damaged extended header"
_EXTENDED_TYPES: Final = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip
_PATH_FIELDS: Final = ("path", "linkpath")
_NUMBER_FIELDS: Final = ("size", "mtime", "uid", "gid")


class BoundedTarInfo(tarfile.TarInfo):
    """An entry of an archive. Pass this class to `tarfile.open` as `tarinfo`. Reading a forbidden header raises `ReadError`."""

    @classmethod
    def fromtarfile(cls, opened: tarfile.TarFile) -> Self:
        """Return the next entry. Raises `ReadError` for a damaged header, which the library takes for the archive's end."""
        try:
            return super().fromtarfile(opened)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]  # No types.
            raise tarfile.ReadError(str(error)) from None

    def _proc_member(self, opened: tarfile.TarFile) -> tarfile.TarInfo:
        """Process the header of this entry, which was just read."""
        if self.size < 0:
            raise tarfile.ReadError("it contains an entry of negative size")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(SPARSE_TEXT)
        if self.type in _EXTENDED_TYPES and self.size > MAX_EXTENDED_HEADER_BYTES:
            raise tarfile.ReadError(
                f"it contains an extended header of {self.size:,} bytes, more than {MAX_EXTENDED_HEADER_BYTES:,}"
            )
        count = getattr(opened, "extended_headers", 0) + 1 if self.type in _EXTENDED_TYPES else 0
        opened.extended_headers = count  # type: ignore[attr-defined]  # The library has no place for it.
        if count > MAX_EXTENDED_HEADERS:
            raise tarfile.ReadError(f"an entry has more than {MAX_EXTENDED_HEADERS} extended headers")
        entry: tarfile.TarInfo = super()._proc_member(opened)  # type: ignore[misc]  # A private method without a type.
        return entry

    def _proc_pax(self, opened: tarfile.TarFile) -> tarfile.TarInfo:
        """Process this extended header and return the entry after it.

        Values for all entries of the archive are not used: tools write only comments there.
        """
        assert opened.fileobj is not None
        data = opened.fileobj.read(self._block(self.size))[: self.size]  # type: ignore[attr-defined]
        values = _parse_records(data)
        try:
            entry = self.fromtarfile(opened)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"an entry is missing after its extended header: {error}") from None
        entry.offset = self.offset
        if self.type != tarfile.XGLTYPE:
            entry._apply_pax_info(values, opened.encoding, opened.errors)  # type: ignore[attr-defined]
            if "size" in values and (entry.isreg() or entry.type not in tarfile.SUPPORTED_TYPES):
                opened.offset = entry.offset_data + entry._block(entry.size)  # type: ignore[attr-defined]
        return entry

    def _reject_sparse_file(self, *_: object) -> NoReturn:
        """Stop at a sparse file, whose map the library would read as a whole."""
        raise tarfile.ReadError(SPARSE_TEXT)

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _reject_sparse_file


def _parse_records(data: bytes) -> dict[str, str]:
    """Return the values of an extended header that Wharf uses. Raises `ReadError` if it is damaged.

    A record has the form `LENGTH NAME=VALUE` with a line feed, where LENGTH is that of the whole record.
    """
    values: dict[str, str] = {}
    position = 0
    while position < len(data) and data[position]:  # Some programs fill the rest of a block with zeros.
        digits, space, _ = data[position : position + MAX_NUMBER_CHARS].partition(b" ")
        if not space or not digits.isdigit():
            raise tarfile.ReadError(_DAMAGED_TEXT)
        end = position + int(digits)
        name, equals, value = data[position + len(digits) + 1 : end].partition(b"=")
        if end > len(data) or not equals or not value.endswith(b"\n"):
            raise tarfile.ReadError(_DAMAGED_TEXT)
        if name.startswith(b"GNU.sparse."):
            raise tarfile.ReadError(SPARSE_TEXT)
        field = name.decode(errors="replace")
        if field in _PATH_FIELDS:
            values[field] = value[:-1].decode(errors="surrogateescape")
        elif field in _NUMBER_FIELDS:
            values[field] = _parse_number(field, value[:-1])
        position = end
    return values


def _parse_number(field: str, value: bytes) -> str:
    """Return a number of an extended header. Raises `ReadError` if it is too long, or is a size and has other characters."""
    if len(value) > MAX_NUMBER_CHARS or not value.isascii() or (field == "size" and not value.isdigit()):
        raise tarfile.ReadError(_DAMAGED_TEXT)
    return value.decode()
