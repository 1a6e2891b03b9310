"""Websocket handshakes that are refused: each gets an HTTP reply, and its connection ends."""

import asyncio

import pytest

from tests.agent.test_connections import build_limiter, connect, open_counted
from tests.agent.test_http_port import HOST, serve_until_exit
from tests.waiting import WITHIN_S

KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
VERSION = b"Sec-WebSocket-Version: 13"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket"


def build_upgrade(*headers: bytes, line: bytes = b"GET / HTTP/1.1") -> bytes:
    return b"\r\n".join([line, b"Host: x", UPGRADE, *headers, b"", b""])


REFUSED_UPGRADES = {
    "long request line": (build_upgrade(KEY, VERSION, line=b"GET /" + b"a" * 9_000 + b" HTTP/1.1"), b"414"),
    "long header": (build_upgrade(KEY, VERSION, b"A: " + b"b" * 9_000), b"431"),
    "many headers": (build_upgrade(KEY, VERSION, *[b"A: b"] * 130), b"431"),
    "announced body": (build_upgrade(KEY, VERSION, b"Content-Length: 5"), b"400"),
    "chunked body": (build_upgrade(KEY, VERSION, b"Transfer-Encoding: chunked"), b"400"),
    "old version": (build_upgrade(KEY, b"Sec-WebSocket-Version: 8"), b"426"),
    "no version": (build_upgrade(KEY), b"426"),
    "two versions": (build_upgrade(KEY, VERSION, VERSION), b"426"),
    "no key": (build_upgrade(VERSION), b"400"),
    "two keys": (build_upgrade(KEY, KEY, VERSION), b"400"),
    "short key": (build_upgrade(b"Sec-WebSocket-Key: YQ==", VERSION), b"400"),
    "key that is not base64": (build_upgrade(b"Sec-WebSocket-Key: ?", VERSION), b"400"),
    "key that is not ASCII": (build_upgrade(b"Sec-WebSocket-Key: \xff\xfe", VERSION), b"400"),
    "another method": (build_upgrade(KEY, VERSION, line=b"POST / HTTP/1.1"), b"405"),
    "old HTTP": (build_upgrade(KEY, VERSION, line=b"GET / HTTP/1.0"), b"505"),
}


@pytest.mark.parametrize("name", REFUSED_UPGRADES)
def test_a_refused_upgrade_gets_a_reply_with_a_text_and_its_connection_ends(name: str) -> None:
    upgrade, status = REFUSED_UPGRADES[name]

    async def send_upgrade() -> bytes:
        async with serve_until_exit() as port, asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection(HOST, port.number)
            writer.write(upgrade)
            reply = await reader.read()
            writer.close()
        return reply

    head, _, body = asyncio.run(send_upgrade()).partition(b"\r\n\r\n")

    assert (head[9:12], b"\r\nconnection: close\r\n" in head.lower()) == (status, True)
    assert len(body) > 20


def test_a_refused_version_names_the_supported_one() -> None:
    async def scenario() -> bytes:
        protocol, wire = connect(build_limiter(1))
        protocol.data_received(build_upgrade(KEY, b"Sec-WebSocket-Version: 8"))
        return wire.sent

    reply = asyncio.run(scenario())

    assert b"\r\nsec-websocket-version: 13\r\n" in reply
    assert reply.endswith(b'the websocket version is "8": send one Sec-WebSocket-Version header with 13')


@pytest.mark.parametrize("name", REFUSED_UPGRADES)
def test_a_refused_upgrade_counts_until_its_connection_ends(name: str) -> None:
    async def scenario() -> list[bool]:
        connections = build_limiter(1)
        protocol, _ = connect(connections)
        protocol.data_received(REFUSED_UPGRADES[name][0])
        is_admitted_before = not open_counted(connections).is_unproven
        protocol.connection_lost(None)
        return [is_admitted_before, not open_counted(connections).is_unproven]

    assert asyncio.run(scenario()) == [False, True]


def test_a_websocket_counts_until_its_connection_ends() -> None:
    async def scenario() -> list[bool]:
        connections = build_limiter(1)
        protocol, wire = connect(connections)
        protocol.data_received(build_upgrade(KEY, VERSION))
        is_admitted_before = not open_counted(connections).is_unproven
        wire.get_protocol().connection_lost(None)
        return [is_admitted_before, not open_counted(connections).is_unproven]

    assert asyncio.run(scenario()) == [False, True]


def test_an_upgrade_behind_a_request_without_its_reply_ends_the_connection() -> None:
    async def scenario() -> tuple[bool, bytes]:
        protocol, wire = connect(build_limiter(1))
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        protocol.data_received(build_upgrade(KEY, VERSION))
        return wire.is_aborted, wire.sent

    assert asyncio.run(scenario()) == (True, b"")
