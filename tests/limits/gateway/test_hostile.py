"""Absurd and dangerous input: always a 4xx, never two readings of one request, never an error of ours."""

import asyncio
import contextlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.gateway.places import Got, Place, at, statuses
from tests.limits.gateway.test_gateway import limits_missing
from wharf.limits.gateway.chunks import BadChunk, ChunkReader, encode_chunk
from wharf.limits.gateway.heads import BadHead, read_request_head

START = b"GET / HTTP/1.1\r\nHost: a\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    "10,000 headers": (START + b"".join(b"X-%d: 1\r\n" % n for n in range(10_000)) + b"\r\n", 431),
    "200 headers": (START + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"\r\n", 431),
    "a header of a mebibyte": (START + b"X-Long: " + b"x" * (1 << 20) + b"\r\n\r\n", 431),
    "a target of 30 kB": (b"GET /" + b"x" * 30_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "a header that is not ASCII": (START + "X-Name: Jürgen\r\n\r\n".encode(), 400),
    "a target that is not ASCII": ("GET /ü HTTP/1.1\r\nHost: a\r\n\r\n".encode(), 400),
    "a name that is not ASCII": (START + "Nöme: 1\r\n\r\n".encode(), 400),
    "a zero byte": (START + b"X-A: a\0b\r\n\r\n", 400),
    "length and chunks": (
        START + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunks and length": (
        START + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "two lengths": (START + b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n" + SMUGGLED, 400),
    "two equal lengths": (START + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "a list of lengths": (START + b"Content-Length: 0, 40\r\n\r\n" + SMUGGLED, 400),
    "a negative length": (START + b"Content-Length: -1\r\n\r\n", 400),
    "a length with a plus": (START + b"Content-Length: +4\r\n\r\nabcd", 400),
    "an absurd length": (START + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", 400),
    "two encodings": (START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "an encoding twice": (START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "an encoding disguised": (START + b"Transfer-Encoding: xchunked\r\n\r\n", 400),
    "an encoding in HTTP/1.0": (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a space before the colon": (START + b"Transfer-Encoding : chunked\r\n\r\n", 400),
    "a folded header": (START + b"X-A: 1\r\n  folded\r\n\r\n", 400),
    "lines that end with LF": (b"GET / HTTP/1.1\nHost: a\n\n" + SMUGGLED, 400),
    "a CR alone": (START + b"X-A: 1\rX-B: 2\r\n\r\n", 400),
    "two hosts": (START + b"Host: b\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "a space in the target": (b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a fragment": (b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "a tunnel": (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 405),
    "another expectation": (START + b"Expect: the-worst\r\n\r\n", 417),
    "a size that is no number": (START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400),
    "a size with a sign": (START + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", 400),
    "a size with 0x": (START + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", 400),
    "a size that is too long": (START + b"Transfer-Encoding: chunked\r\n\r\n" + b"F" * 17 + b"\r\n", 400),
    "a chunk longer than its size": (START + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", 400),
    "a host that is none": (b"GET /x HTTP/1.1\r\nHost: a b/c\r\n\r\n", 400),
    "a size that ends with LF": (START + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", 400),
    "an extension that does not end": (START + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 1_000, 400),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_one_way_only_gets_a_4xx_with_limits_and_reaches_nobody(tmp_path: Path, name: str) -> None:
    data, status = REFUSED[name]

    async def scenario(place: Place) -> tuple[int, list[str], list[str], bytes]:
        async def reads(_got: Got, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await reader.read()

        place.service.reads_bodies = False
        place.service.handler = reads
        wire = await place.wire()
        await wire.send(data)
        heard = await wire.hear()
        return heard.status, limits_missing(heard), [got.line for got in place.service.got], await wire.rest()

    said, missing, reached, rest = at(tmp_path, scenario)

    assert (said, missing, rest) == (status, [], b"")
    assert [line for line in reached if "smuggled" in line] == []


def test_random_bytes_and_broken_requests_never_cause_a_5xx(tmp_path: Path) -> None:
    chance = Random(20_261_121)
    pieces = [
        b"GET", b"POST", b"/", b" ", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b"Host: a", b"Content-Length: 5", b"0\r\n\r\n",
        b"Transfer-Encoding: chunked", b":", b"\0", b"\xff", b"hello", b"5\r\nhello\r\n", b"Connection: upgrade",
        b"Upgrade: websocket", b"Authorization: Basic ====", b"Authorization: Bearer \t", b"Expect: 100-continue",
        b"/graphql", b'{"query": "{"}', b"/a/b.git/info/lfs/objects/batch", b"?access_token=1", b"%2e%2e/", b"\r\n\r\n",
    ]  # fmt: skip
    whole = [b"GET /%s HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", b"POST /graphql HTTP/1.1\r\nHost: a\r\n%s\r\n%s\r\n\r\n"]

    def made() -> bytes:
        if chance.random() < 0.4:
            form = chance.choice(whole)
            return form % (chance.choice(pieces), chance.choice(pieces))
        return b"".join(chance.choice(pieces) for _ in range(chance.randrange(1, 30)))

    async def scenario(place: Place) -> tuple[list[int], int]:
        found: list[int] = []
        for _ in range(600):
            wire = await place.wire()
            await wire.send(made())
            wire.writer.write_eof()
            found += statuses(await wire.rest())
            wire.close()
        assert (await place.ask()).status in (200, 403)
        return [status for status in found if status >= 500], len(place.desk.running_requests)

    assert at(tmp_path, scenario) == ([], 0)


@given(st.binary(max_size=400))
def test_any_head_is_read_or_refused_with_a_4xx(data: bytes) -> None:
    head = data + b"\r\n\r\n"
    status = 400
    try:
        read_request_head(head, len(head), max_headers=20)
    except BadHead as problem:
        status = problem.status

    assert status in range(400, 500)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=6), st.data())
def test_chunks_are_the_same_however_they_arrive(parts: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(map(encode_chunk, parts)) + b"0\r\n\r\nrest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    reader, found = ChunkReader(), b""
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        if reader.is_done:
            reader.rest += sent[start:end]
        else:
            found += reader.feed(sent[start:end])

    assert (found, reader.is_done, reader.rest) == (b"".join(parts), True, b"rest")


@given(st.binary(max_size=200))
def test_any_bytes_are_chunks_or_are_refused(data: bytes) -> None:
    read = b""
    with contextlib.suppress(BadChunk):
        read = ChunkReader().feed(data)

    assert len(read) <= len(data)
