"""Compressed replies: which are read, and what hostile ones cost."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable

import httpx2
import pytest

from tests.world.test_http_clients import run_against
from wharf.world.http_clients import build_async_client, build_client, read_body, read_body_blocking

EMPTY_BLOCK = b"\x00\x00\x00\xff\xff"
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
MAX_BYTES = 256 * 1024 * 1024


def build_reply(body: bytes, *codings: str) -> bytes:
    headers = "".join(f"Content-Encoding: {coding}\r\n" for coding in codings)
    return f"HTTP/1.1 200 OK\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def fetch(address: str) -> object:
    async with build_async_client() as client:
        try:
            async with client.stream("GET", address) as reply:
                return await read_body(reply, timeout_s=5, max_bytes=MAX_BYTES)
        except httpx2.RequestError as error:
            return f"{type(error).__name__}: {error}"


async def fetch_blocking(address: str) -> object:
    def fetch_all() -> object:
        with build_client() as client:
            try:
                with client.stream("GET", address) as reply:
                    return read_body_blocking(reply, timeout_s=5, max_bytes=MAX_BYTES)
            except httpx2.RequestError as error:
                return f"{type(error).__name__}: {error}"

    return await asyncio.to_thread(fetch_all)


def read_reply(reply: bytes, use: Callable[[str], Awaitable[object]] = fetch) -> object:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(reply)

    return run_against(answer, use)[0]


def compress(content: bytes, bits: int) -> bytes:
    compressor = zlib.compressobj(wbits=bits)
    return compressor.compress(content) + compressor.flush()


@pytest.mark.parametrize("use", [fetch, fetch_blocking])
@pytest.mark.parametrize(
    ("coding", "bits"), [("gzip", 31), ("GZIP", 31), ("deflate", 15), ("deflate", -15), ("identity, gzip", 31)]
)
def test_a_body_with_one_coding_is_decompressed(
    coding: str, bits: int, use: Callable[[str], Awaitable[object]]
) -> None:
    content = bytes(range(256)) * 5_000

    assert read_reply(build_reply(compress(content, bits), coding), use) == content


@pytest.mark.parametrize("use", [fetch, fetch_blocking])
@pytest.mark.parametrize(
    "codings", [("gzip, gzip",), ("gzip", "gzip"), ("deflate, gzip",), ("gzip, identity, deflate",), ("br",), ("zstd",)]
)
def test_a_reply_with_several_codings_or_one_that_was_not_requested_is_refused(
    codings: tuple[str, ...], use: Callable[[str], Awaitable[object]]
) -> None:
    text = str(read_reply(build_reply(b"x", *codings), use))

    assert text.startswith("RemoteProtocolError: the reply has the content encoding ")
    assert text.endswith(": expected at most one of gzip, deflate")


def test_layers_of_compressed_data_without_content_do_not_hold_the_event_loop() -> None:
    body = GZIP_HEADER + EMPTY_BLOCK * 20_000_000
    for _ in range(3):
        body = compress(body, 31)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(build_reply(body, "gzip, gzip, gzip, gzip"))

    result, holds = run_against(answer, fetch)

    assert (len(body) < 2_000, str(result)[:20]) == (True, "RemoteProtocolError:")
    holds.require_short("layers of compressed data without content")


def test_compressed_data_without_content_does_not_hold_the_event_loop() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(build_reply(GZIP_HEADER + EMPTY_BLOCK * 200_000, "gzip"))

    result, holds = run_against(answer, fetch)

    assert result == "DecodingError: the compressed reply ends too early"
    holds.require_short("compressed data without content")


def test_a_small_body_with_large_content_does_not_hold_the_event_loop() -> None:
    body = compress(bytes(16_000_000), 31)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(build_reply(body, "gzip"))

    result, holds = run_against(answer, fetch)

    assert (isinstance(result, bytes) and len(result), len(body) < 17_000) == (16_000_000, True)
    holds.require_short("a small body with large content")


def test_data_after_compressed_content_is_refused() -> None:
    reply = build_reply(compress(b"ok", 31) + b"x" * 1_000_000, "gzip")

    assert read_reply(reply) == "DecodingError: the reply has data after the end of its compressed content"


@pytest.mark.parametrize(
    ("body", "text"),
    [(compress(b"a" * 10_000, 31)[:-1], "ends too early"), (b"not compressed", "is invalid"), (b"", "")],
)
def test_a_compressed_body_that_is_incomplete_or_invalid_is_refused(body: bytes, text: str) -> None:
    result = read_reply(build_reply(body, "gzip"))

    assert result == b"" if not body else text in str(result)
