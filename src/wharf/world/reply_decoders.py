"""Decompression of replies with bounded work for each received piece.

The HTTP library undoes up to five codings on top of each other. A reply of 1 kB could then make it process gigabytes that
yield no byte, in one step of the event loop. It also stores all bytes after the end of compressed data.
"""

import zlib
from collections.abc import Iterator
from typing import Final

import httpx2

ACCEPTED_CODINGS: Final = "gzip, deflate"
"""The codings that requests accept."""
OTHER_CODINGS: Final = frozenset(("br", "zstd"))
"""Codings that the library may undo as well, depending on what is installed."""
MAX_STEP_BYTES: Final = 256 * 1024
"""The most bytes that are decompressed at once, in 1 ms. Received pieces have up to 64 KiB, so a step without output is short."""
ANY_HEADER_BITS: Final = 32 + zlib.MAX_WBITS
"""Accepts the formats of gzip and zlib."""


def limit_decoding(response: httpx2.Response) -> None:
    """Replace the decoders of a reply whose body is not read yet.

    Raises `httpx2.RemoteProtocolError` for several codings, or one that was not requested.
    """
    values = response.headers.get_list("content-encoding", split_commas=True)
    codings = [value.strip().lower() for value in values]
    applied = [coding for coding in codings if coding in ("gzip", "deflate") or coding in OTHER_CODINGS]
    if not applied:
        return
    if len(applied) > 1 or applied[0] in OTHER_CODINGS:
        raise httpx2.RemoteProtocolError(
            f"the reply has the content encoding {', '.join(applied)[:100]}: expected at most one of {ACCEPTED_CODINGS}"
        )
    response._decoder = BoundedDecoder()  # type: ignore[assignment]  # it has the methods that the library calls


async def limit_decoding_async(response: httpx2.Response) -> None:
    """Call `limit_decoding` as a hook of an asyncio client."""
    limit_decoding(response)


class BoundedDecoder:
    """Decompresses the body of one reply in steps."""

    def __init__(self) -> None:
        self._decompressor = zlib.decompressobj(ANY_HEADER_BITS)
        self._has_input = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of further compressed bytes. Raises `httpx2.DecodingError`."""
        try:
            content = self._begin(data)
            while content:
                yield content
                content = self._decompressor.decompress(self._decompressor.unconsumed_tail, MAX_STEP_BYTES)
        except zlib.error as error:
            raise httpx2.DecodingError(f"the compressed reply is invalid: {error}") from error
        if self._decompressor.unused_data:
            raise httpx2.DecodingError("the reply has data after the end of its compressed content")

    def _begin(self, data: bytes) -> bytes:
        """Return the first content of these bytes. Without any header, "deflate" means raw data for some servers."""
        is_first, self._has_input = not self._has_input, self._has_input or bool(data)
        try:
            return self._decompressor.decompress(data, MAX_STEP_BYTES)
        except zlib.error:
            if not is_first:
                raise
            self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._decompressor.decompress(data, MAX_STEP_BYTES)

    def flush(self) -> Iterator[bytes]:
        """Yield nothing, because nothing is held back. Raises `httpx2.DecodingError` if the content is incomplete."""
        if self._has_input and not self._decompressor.eof:
            raise httpx2.DecodingError("the compressed reply ends too early")
        yield from ()
