"""Malformed and ambiguous input: every such request gets a 4xx, and causes neither a 5xx nor a second request."""

import asyncio
import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.gateway.running_gateway import ReceivedRequest, RunningGateway, find_statuses, run_scenario
from tests.limits.gateway.test_gateway import find_missing_headers
from tests.waiting import wait_on_loop_until
from wharf.limits.decisions import LocalReply
from wharf.limits.gateway.chunks import BadChunk, ChunkReader, encode_chunk
from wharf.limits.gateway.heads import BadHead, read_request_head
from wharf.limits.gateway.upstream import ReplyHandler, UpstreamConnection

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
    "TLS instead of HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "CONNECT": (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 405),
    "an unknown expectation": (START + b"Expect: the-worst\r\n\r\n", 417),
    "a size that is not a number": (START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400),
    "a size with a sign": (START + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", 400),
    "a size with 0x": (START + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", 400),
    "a size that is too long": (START + b"Transfer-Encoding: chunked\r\n\r\n" + b"F" * 17 + b"\r\n", 400),
    "a chunk longer than its size": (START + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", 400),
    "a host that is not a name": (b"GET /x HTTP/1.1\r\nHost: a b/c\r\n\r\n", 400),
    "a size that ends with LF": (START + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", 400),
    "an extension that does not end": (START + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 1_000, 400),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_ambiguous_request_gets_a_4xx_with_limit_headers_and_nothing_smuggled_is_forwarded(
    tmp_path: Path, name: str
) -> None:
    data, status = REFUSED[name]

    async def scenario(running: RunningGateway) -> tuple[int, list[str], list[str], bytes]:
        async def read_until_disconnect(
            _request: ReceivedRequest, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter
        ) -> None:
            await reader.read()

        running.service.reads_bodies = False
        running.service.handler = read_until_disconnect
        caller = await running.connect()
        await caller.send(data)
        reply = await caller.read_reply()
        return (
            reply.status,
            find_missing_headers(reply),
            [request.line for request in running.service.requests],
            await caller.read_until_close(),
        )

    reply_status, missing, forwarded, rest = run_scenario(tmp_path, scenario)

    assert (reply_status, missing, rest) == (status, [], b"")
    assert [line for line in forwarded if "smuggled" in line] == []


def test_a_refused_body_is_not_sent_when_the_connection_to_the_service_opens_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(running: RunningGateway) -> tuple[bool, int]:
        environment, decision_service = running.gateway.environment, running.decision_service
        waiting: list[ReplyHandler] = []
        monkeypatch.setattr(environment.pool, "start_connecting", waiting.append)
        may_reply = asyncio.Event()
        render_error = decision_service.render_error

        async def render_error_later(*arguments: Any) -> LocalReply:
            await may_reply.wait()
            return await render_error(*arguments)

        monkeypatch.setattr(decision_service, "render_error", render_error_later)
        caller = await running.connect()
        await caller.send(b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await wait_on_loop_until(lambda: waiting, what="the request waits for a connection")
        connection = next(iter(running.gateway.connections))
        await caller.send(b"what?\r\n")
        await wait_on_loop_until(
            lambda: connection.request is not None and connection.request.is_body_read, what="the body is refused"
        )
        is_sent = waiting[0].on_upstream_ready(UpstreamConnection(environment.pool))
        may_reply.set()
        return is_sent, (await caller.read_reply()).status

    assert run_scenario(tmp_path, scenario) == (False, 400)


def test_random_bytes_and_malformed_requests_never_cause_a_5xx(tmp_path: Path) -> None:
    random = Random(20_261_121)
    fragments = [
        b"GET", b"POST", b"/", b" ", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b"Host: a", b"Content-Length: 5", b"0\r\n\r\n",
        b"Transfer-Encoding: chunked", b":", b"\0", b"\xff", b"hello", b"5\r\nhello\r\n", b"Connection: upgrade",
        b"Upgrade: websocket", b"Authorization: Basic ====", b"Authorization: Bearer \t", b"Expect: 100-continue",
        b"/graphql", b'{"query": "{"}', b"/a/b.git/info/lfs/objects/batch", b"?access_token=1", b"%2e%2e/", b"\r\n\r\n",
    ]  # fmt: skip
    templates = [b"GET /%s HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", b"POST /graphql HTTP/1.1\r\nHost: a\r\n%s\r\n%s\r\n\r\n"]

    def make_request() -> bytes:
        if random.random() < 0.4:
            template = random.choice(templates)
            return template % (random.choice(fragments), random.choice(fragments))
        return b"".join(random.choice(fragments) for _ in range(random.randrange(1, 30)))

    async def scenario(running: RunningGateway) -> tuple[list[int], int]:
        statuses: list[int] = []
        for _ in range(600):
            caller = await running.connect()
            await caller.send(make_request())
            caller.writer.write_eof()
            statuses += find_statuses(await caller.read_until_close())
            caller.close()
        assert (await running.request()).status in (200, 403)
        return [status for status in statuses if status >= 500], len(running.decision_service.running_requests)

    assert run_scenario(tmp_path, scenario) == ([], 0)


@given(st.binary(max_size=400))
def test_any_head_is_parsed_or_refused_with_a_4xx(data: bytes) -> None:
    head = data + b"\r\n\r\n"
    status = 400
    try:
        read_request_head(head, len(head), max_headers=20)
    except BadHead as error:
        status = error.status

    assert status in range(400, 500)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=6), st.data())
def test_a_chunked_body_is_decoded_equally_however_it_is_split(parts: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(map(encode_chunk, parts)) + b"0\r\n\r\nrest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    reader, decoded = ChunkReader(), b""
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        if reader.is_done:
            reader.rest += sent[start:end]
        else:
            decoded += reader.feed(sent[start:end])

    assert (decoded, reader.is_done, reader.rest) == (b"".join(parts), True, b"rest")


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_as_chunks_or_refused(data: bytes) -> None:
    read = b""
    with contextlib.suppress(BadChunk):
        read = ChunkReader().feed(data)

    assert len(read) <= len(data)
