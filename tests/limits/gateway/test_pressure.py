"""Callers and services that are slow, early or many: nothing piles up, nobody gets another's bytes, slots are freed."""

import asyncio
from pathlib import Path

from tests.limits.front.desks import held
from tests.limits.gateway.places import Got, Place, at, hello, statuses
from tests.limits.gateway.test_gateway import ADA_SENDS
from tests.waiting import wait_on_loop_until

MEBIBYTE = 1 << 20


def test_a_caller_who_does_not_read_holds_back_the_service(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[bool, int]:
        sent = 0
        is_whole = asyncio.Event()

        async def pours(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 * MEBIBYTE))
            for _ in range(64):
                writer.write(b"x" * MEBIBYTE)
                await writer.drain()
                sent += 1
            is_whole.set()

        place.service.handler = pours
        wire = await place.wire()
        await wire.send(f"GET /big HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        before = -1

        def stands_still() -> bool:
            nonlocal before
            still, before = sent == before and sent > 0, sent
            return still

        await wait_on_loop_until(stands_still, what="the service waits")
        was_held_back = not is_whole.is_set()
        left = await wire.reader.readuntil(b"\r\n\r\n")
        body = await wire.reader.readexactly(64 * MEBIBYTE)
        assert left
        return was_held_back, len(body)

    assert at(tmp_path, scenario) == (True, 64 * MEBIBYTE)


def test_a_service_that_does_not_read_holds_back_the_caller(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[bool, int]:
        place.service.reads_bodies = False
        may_read = asyncio.Event()

        async def late(got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await may_read.wait()
            got.body = await reader.readexactly(64 * MEBIBYTE)
            await hello(got, reader, writer)

        place.service.handler = late
        wire = await place.wire()
        wire.writer.write(b"PUT /big HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (64 * MEBIBYTE))
        sending = place.desk.world.start_task(_pour(wire.writer), name="pour")
        await wait_on_loop_until(lambda: place.service.got, what="the service has the head")
        done, _ = await asyncio.wait([sending], timeout=0.3)
        may_read.set()
        await sending
        return not done, (await wire.hear()).status

    async def _pour(writer: asyncio.StreamWriter) -> None:
        for _ in range(64):
            writer.write(b"x" * MEBIBYTE)
            await writer.drain()

    assert at(tmp_path, scenario) == (True, 200)


def test_a_body_that_pauses_is_the_callers_fault_and_costs(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[int, str]:
        wire = await place.wire()
        await wire.send(f"PUT /x HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\nContent-Length: 9\r\n\r\nabc".encode())
        heard = await wire.hear()
        return heard.status, heard.headers["x-ratelimit-used"]

    assert at(tmp_path, scenario, gateway='upstream_timeout = "100ms"\nidle_timeout = "1s"') == (408, "1")


def test_a_service_that_does_not_read_for_long_is_at_fault(tmp_path: Path) -> None:
    async def scenario(place: Place) -> int:
        place.service.reads_bodies = False

        async def sits(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await writer.wait_closed()

        place.service.handler = sits
        wire = await place.wire()
        wire.writer.write(b"PUT /big HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (64 * MEBIBYTE))
        wire.writer.write(b"x" * (64 * MEBIBYTE))
        return (await wire.hear()).status

    assert at(tmp_path, scenario, gateway='upstream_timeout = "1s"\nidle_timeout = "1s"') == 504


def test_a_reply_that_comes_before_the_body_ends_reaches_the_caller(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[list[int], int]:
        place.service.reads_bodies = False

        async def early(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 422 No\r\nContent-Length: 2\r\n\r\nno")

        place.service.handler = early
        wire = await place.wire()
        await wire.send(
            f"PUT /big HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\nContent-Length: 30000\r\n\r\n".encode() + b"x" * 10
        )
        first = await wire.hear()
        await wire.send(b"x" * 29_990)
        place.service.reads_bodies = True
        place.service.handler = hello
        return [first.status, (await wire.ask()).status], held(place.desk)

    assert at(tmp_path, scenario) == ([422, 200], 0)


def test_more_requests_than_connections_to_the_service_wait_their_turn(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[list[int], int]:
        wires = [await place.wire() for _ in range(30)]
        heard = await asyncio.gather(*(wire.ask() for wire in wires))
        return [reply.status for reply in heard], place.service.connections

    statuses_heard, connections = at(tmp_path, scenario, gateway="upstream_connections_most = 2")

    assert (statuses_heard, connections) == ([200] * 30, 2)


def test_a_caller_who_leaves_while_waiting_for_a_connection_is_given_back(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[int, list[str]]:
        may_end = asyncio.Event()

        async def waits(got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await may_end.wait()
            await hello(got, reader, writer)

        place.service.handler = waits
        first, second = await place.wire(), await place.wire()
        await first.send(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
        await wait_on_loop_until(lambda: place.service.got, what="the first is there")
        await second.send(f"GET /second HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        await wait_on_loop_until(lambda: held(place.desk), what="the second is admitted")
        second.close()
        await wait_on_loop_until(lambda: not held(place.desk), what="its slot is free")
        may_end.set()
        await first.hear()
        return held(place.desk, rule="core"), [got.line for got in place.service.got]

    assert at(tmp_path, scenario, gateway="upstream_connections_most = 1") == (0, ["GET /first HTTP/1.1"])


def test_whoever_waits_for_a_connection_hears_when_the_service_is_gone(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[list[int], int]:
        is_gone = asyncio.Event()

        async def leaves(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await is_gone.wait()
            writer.close()

        place.service.handler = leaves
        wires = [await place.wire() for _ in range(6)]
        asked = [place.desk.world.start_task(wire.ask("/x", ADA_SENDS), name="ask") for wire in wires]
        await wait_on_loop_until(lambda: held(place.desk) == 6, what="all are admitted")
        place.service.close()
        is_gone.set()
        return [heard.status for heard in await asyncio.gather(*asked)], held(place.desk)

    assert at(tmp_path, scenario, gateway="upstream_connections_most = 2") == ([502] * 6, 0)


def test_whoever_waits_for_a_connection_waits_no_longer_than_a_reply_may_take(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[int, str]:
        async def talks(_got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            await reader.read()

        place.service.handler = talks
        first, second = await place.wire(), await place.wire()
        await first.send(b"GET /talk HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert (await first.hear()).status == 101
        heard = await second.ask("/x", ADA_SENDS)
        first.close()
        return heard.status, heard.json()["message"]

    assert at(tmp_path, scenario, gateway='upstream_connections_most = 1\nupstream_timeout = "1s"') == (
        504,
        "The service did not answer in time: all connections to it were busy.",
    )


def test_callers_beyond_the_bound_are_turned_away(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[list[int], bytes]:
        first = await place.wire()
        await first.ask()
        second = await place.wire()
        return [(await first.ask()).status], await second.rest()

    assert at(tmp_path, scenario, gateway="connections_most = 1") == ([200], b"")


def test_a_broken_body_that_was_begun_to_be_sent_never_reaches_the_service_whole(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[list[int], list[bytes]]:
        wire = await place.wire()
        await wire.send(b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await wait_on_loop_until(lambda: place.service.got, what="the service has the head")
        await wire.send(b"what?\r\n")
        said = statuses(await wire.rest())
        return said, [got.body for got in place.service.got]

    assert at(tmp_path, scenario) == ([400], [b""])
