"""Decompresses files that are not trusted, in pieces of limited size and with limited memory.

A file of a few kilobytes can contain gigabytes. The library functions that read whole archives decompress each block of input
at once, whatever its size becomes.
"""

import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Mapping
from typing import BinaryIO, Final, Protocol

from wharf.node.unpacking.budget import CopyBudget

INPUT_BYTES: Final = 16 << 10
"""Compressed bytes that are read at a time."""
MAX_PIECE_BYTES: Final = 1 << 20
"""Decompressed bytes between two checks of the limits; less than 0.1 s of CPU time in all formats."""
MAX_XZ_MEMORY_BYTES: Final = 72 << 20
"""Memory for one xz file. All levels of the program xz need at most 65 MiB; a file may ask for 4 GiB."""
_BEGINNINGS: Final[Mapping[str, re.Pattern[bytes]]] = {
    "gz": re.compile(rb"\x1f\x8b\x08"),
    "bz2": re.compile(rb"BZh[1-9]1AY&SY"),
    "xz": re.compile(rb"\xfd7zXZ\x00|\x5d\x00\x00\x80"),
}
"""How a file of each compression begins; the second form of xz is the old format `.lzma`."""
_NEXT_PARTS: Final[Mapping[str, bytes]] = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""How a further compressed part begins."""


class _Decompressor(Protocol):
    """The methods that the library's decompressors have in common."""

    @property
    def eof(self) -> bool:
        """Whether the compressed data have ended."""

    @property
    def needs_input(self) -> bool:
        """Whether more can be decompressed only with more input."""

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the compressed data."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return at most `max_length` bytes."""


class _GzipDecompressor:
    """A decompressor for gzip with the methods of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


_DECOMPRESSORS: Final[Mapping[str, Callable[[], _Decompressor]]] = {
    "gz": _GzipDecompressor,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY_BYTES),
}


class CountedFile:
    """A file, of which each read counts for the budget of an artifact."""

    def __init__(self, file: BinaryIO, budget: CopyBudget) -> None:
        self._file = file
        self._budget = budget

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end of the file. Raises ArtifactError and OSError."""
        data = self._file.read(min(size, MAX_PIECE_BYTES))
        self._budget.count_read(len(data))
        return data


class DecompressedFile:
    """The content of a compressed file. What is decompressed counts for the budget of an artifact.

    Several compressed parts in a row are read as one, as parallel compression programs write them.
    """

    def __init__(self, file: BinaryIO, compression: str, budget: CopyBudget) -> None:
        """`compression` is `gz`, `bz2` or `xz`."""
        self._file = file
        self._compression = compression
        self._budget = budget
        self._decompressor: _Decompressor | None = _DECOMPRESSORS[compression]()
        self._next_input = b""
        """Input that was read already and is not decompressed."""

    def read(self, size: int) -> bytes:
        """Return at most `size` decompressed bytes, none at the end.

        Raises ArtifactError, EOFError if the file is cut off, the decompressors' errors if it is damaged, and OSError.
        """
        while self._decompressor is not None:
            source = self._decompressor
            if source.eof:
                self._begin_next_part(source.unused_data)
                continue
            is_cut_off, data = False, b""
            if source.needs_input:
                data, self._next_input = self._next_input or self._file.read(INPUT_BYTES), b""
                is_cut_off = not data
            piece = source.decompress(data, min(size, MAX_PIECE_BYTES))
            self._budget.count_read(len(piece))
            if piece:
                return piece
            if is_cut_off and not source.eof:
                raise EOFError("it is cut off")
        return b""

    def _begin_next_part(self, data: bytes) -> None:
        """Begin with the part that starts with `data` and goes on in the file; without one, the content has ended.

        Zeros after a part are padding. Raises ValueError if other data follow.
        """
        beginning = _NEXT_PARTS[self._compression]
        data = data.lstrip(b"\0")
        while len(data) < len(beginning) and (more := self._file.read(INPUT_BYTES)):
            data = (data + more).lstrip(b"\0")
            self._budget.require_needed()
        if data and not data.startswith(beginning):
            raise ValueError("other data follow after its compressed content")
        self._decompressor = _DECOMPRESSORS[self._compression]() if data else None
        self._next_input = data


def detect_compression(file: BinaryIO) -> str:
    """Return the compression of a file by its first bytes, and go back to its start. Empty: none is known."""
    start = file.read(16)
    file.seek(0)
    return next((name for name, beginning in _BEGINNINGS.items() if beginning.match(start)), "")
