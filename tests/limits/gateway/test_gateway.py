"""The gateway as its callers and its service see it: replies pass, both ways stream, limits are told on all of them."""

import asyncio
from pathlib import Path

import pytest

from tests.limits.front.desks import ADA, CLIENT_ID, CLIENT_SECRET, basic, held, used
from tests.limits.gateway.places import Got, Heard, Place, at, hello, statuses
from tests.waiting import wait_on_loop_until

ADA_SENDS = f"Authorization: token {ADA}"
LIMITS = ("limit", "remaining", "used", "reset", "resource")


def limits_missing(heard: Heard) -> list[str]:
    names = [*(f"x-ratelimit-{name}" for name in LIMITS), "ratelimit", "ratelimit-policy", "x-github-request-id"]
    return [name for name in names if name not in heard.headers]


def test_a_request_passes_and_its_reply_carries_the_limits(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[Heard, Got]:
        return await place.ask("/things?x=1", ADA_SENDS, "Accept: text/plain"), place.service.got[0]

    heard, got = at(tmp_path, scenario)

    assert (heard.status, heard.body, limits_missing(heard)) == (200, b"hello", [])
    assert heard.headers["x-ratelimit-limit"] == "5000"
    assert got.line == "GET /things?x=1 HTTP/1.1"
    assert (got.headers["host"], got.headers["accept"]) == ("service.example", "text/plain")
    assert (got.headers["x-forwarded-for"], got.headers["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert got.headers["x-wharf-request-id"] == heard.headers["x-github-request-id"]


@pytest.mark.parametrize("status", [200, 204, 301, 304, 404, 418, 500, 503])
def test_every_reply_of_the_service_carries_the_limits(tmp_path: Path, status: int) -> None:
    async def scenario(place: Place) -> Heard:
        async def replies(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            length = b"" if status in (204, 304) else b"Content-Length: 0\r\n"
            writer.write(b"HTTP/1.1 %d Said\r\n%s\r\n" % (status, length))

        place.service.handler = replies
        return await place.ask("/things", ADA_SENDS)

    heard = at(tmp_path, scenario)

    assert (heard.status, limits_missing(heard)) == (status, [])


def test_what_is_refused_never_reaches_the_service(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[list[Heard], int]:
        wire = await place.wire()
        return [await wire.ask("/things", ADA_SENDS) for _ in range(3)], len(place.service.got)

    heard, asked = at(tmp_path, scenario, rules='[[rule]]\nname = "core"\nceiling = 2\n')

    assert ([h.status for h in heard], asked) == ([200, 200, 403], 2)
    assert heard[2].json()["message"].startswith("API rate limit exceeded for user ID 5")
    assert limits_missing(heard[2]) == []


def test_connections_of_both_sides_are_used_again(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[int, int]:
        wire = await place.wire()
        for _ in range(5):
            await wire.ask()
        return len(place.service.got), place.service.connections

    assert at(tmp_path, scenario) == (5, 1)


def test_requests_sent_at_once_are_answered_in_order(tmp_path: Path) -> None:
    async def scenario(place: Place) -> list[bytes]:
        async def echoes(got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            path = got.line.split()[1].encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path))

        place.service.handler = echoes
        wire = await place.wire()
        await wire.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(20)))
        return [(await wire.hear()).body for _ in range(20)]

    assert at(tmp_path, scenario) == [b"/%d" % n for n in range(20)]


@pytest.mark.parametrize("encoding", ["length", "chunked"])
def test_bodies_pass_whole_in_both_directions(tmp_path: Path, encoding: str) -> None:
    body = bytes(range(256)) * 8_000

    async def scenario(place: Place) -> tuple[bytes, bytes]:
        async def echoes(got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if encoding == "length":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(got.body) + got.body)
                return
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(got.body), 10_000):
                some = got.body[at : at + 10_000]
                writer.write(b"%x;note=1\r\n%s\r\n" % (len(some), some))
            writer.write(b"0\r\nX-Trailer: 1\r\n\r\n")

        place.service.handler = echoes
        wire = await place.wire()
        if encoding == "length":
            heard = await wire.ask("/up", method="PUT", body=body)
        else:
            await wire.send(b"PUT /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 7_001):
                some = body[at : at + 7_001]
                await wire.send(b"%X\r\n%s\r\n" % (len(some), some))
            await wire.send(b"0\r\n\r\n")
            heard = await wire.hear()
        again = await wire.ask("/small", method="PUT", body=b"x")
        return heard.body, again.body

    assert at(tmp_path, scenario) == (body, b"x")


def test_a_reply_streams_before_it_is_whole(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[bytes, int, bytes, int]:
        may_end = asyncio.Event()

        async def streams(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await writer.drain()
            await may_end.wait()
            writer.write(b"5\r\nfirst\r\n0\r\n\r\n")

        place.service.handler = streams
        wire = await place.wire()
        await wire.send(f"GET /s HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        head = await wire.reader.readuntil(b"\r\n\r\n")
        running = held(place.desk)
        may_end.set()
        body = await wire.reader.readuntil(b"0\r\n\r\n")
        return head[:15], running, body, held(place.desk)

    assert at(tmp_path, scenario) == (b"HTTP/1.1 200 OK", 1, b"5\r\nfirst\r\n0\r\n\r\n", 0)


def test_a_reply_has_one_date_whether_the_service_tells_it_or_not(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[bool, str]:
        without = (await place.ask()).headers

        async def dated(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nDate: Tue, 15 Nov 1994 08:12:31 GMT\r\nContent-Length: 0\r\n\r\n")

        place.service.handler = dated
        wire = await place.wire()
        await wire.send(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        told = [line for line in (await wire.rest()).split(b"\r\n") if line.lower().startswith(b"date:")]
        return without["date"].endswith(" GMT"), b"; ".join(told).decode()

    assert at(tmp_path, scenario) == (True, "Date: Tue, 15 Nov 1994 08:12:31 GMT")


def test_a_request_streams_before_it_is_whole(tmp_path: Path) -> None:
    async def scenario(place: Place) -> bytes:
        place.service.reads_bodies = False
        seen = asyncio.Event()
        got_bytes = b""

        async def reads(_got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal got_bytes
            got_bytes += await reader.readexactly(3)
            seen.set()
            got_bytes += await reader.readexactly(3)
            await hello(_got, reader, writer)

        place.service.handler = reads
        wire = await place.wire()
        await wire.send(b"PUT /s HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc")
        await asyncio.wait_for(seen.wait(), 60)
        await wire.send(b"def")
        await wire.hear()
        return got_bytes

    assert at(tmp_path, scenario) == b"abcdef"


def test_a_caller_who_hangs_up_frees_the_slot_and_the_service(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[int, bytes]:
        heard_end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def sits(_got: Got, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            heard_end.set_result(await reader.read())

        place.service.handler = sits
        wire = await place.wire()
        await wire.send(f"GET /s HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        await wait_on_loop_until(lambda: held(place.desk), what="the request runs")
        wire.close()
        await wait_on_loop_until(lambda: not held(place.desk), what="the slot is free")
        return used(place.desk, "core"), await asyncio.wait_for(heard_end, 60)

    assert at(tmp_path, scenario) == (1, b"")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"", 502),
        (b"what?\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 502),
    ],
)
def test_a_service_that_fails_is_told_with_limits_and_given_back(tmp_path: Path, said: bytes, status: int) -> None:
    async def scenario(place: Place) -> tuple[Heard, int, int]:
        async def fails(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            writer.close()

        place.service.handler = fails
        return await place.ask("/things", ADA_SENDS), used(place.desk, "core"), held(place.desk)

    heard, counted, slots = at(tmp_path, scenario)

    assert (heard.status, limits_missing(heard), counted, slots) == (status, [], 0, 0)


def test_a_service_that_is_away_and_one_that_is_silent(tmp_path: Path) -> None:
    async def scenario(place: Place) -> list[tuple[int, list[str]]]:
        async def silent(_got: Got, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await reader.read()

        place.service.handler = silent
        slow = await place.ask()
        place.service.close()
        away = await place.ask()
        return [(heard.status, limits_missing(heard)) for heard in (slow, away)]

    assert at(tmp_path, scenario, gateway='upstream_timeout = "100ms"') == [(504, []), (502, [])]


def test_an_idle_connection_that_the_service_closed_is_no_failure(tmp_path: Path) -> None:
    async def scenario(place: Place) -> list[int]:
        async def answers_once(got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await hello(got, reader, writer)
            await writer.drain()
            if len(place.service.got) == 1:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head
                writer.close()  # At the moment in which the next request came.

        place.service.handler = answers_once
        wire = await place.wire()
        return [(await wire.ask()).status for _ in range(2)]

    assert at(tmp_path, scenario) == [200, 200]


def test_a_reply_that_ends_with_the_connection_is_framed_for_the_caller(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[Heard, bytes]:
        async def old(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.0 200 OK\r\nX-Old: yes\r\n\r\nuntil the end")
            writer.close()

        place.service.handler = old
        wire = await place.wire()
        heard = await wire.ask()
        older = await place.wire()
        await older.send(b"GET /old HTTP/1.0\r\n\r\n")
        return heard, await older.rest()

    heard, older = at(tmp_path, scenario)

    assert (heard.body, heard.headers["transfer-encoding"]) == (b"until the end", "chunked")
    assert older.endswith(b"\r\n\r\nuntil the end")
    assert b"transfer-encoding" not in older.lower()


def test_a_head_request_has_no_body_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def scenario(place: Place) -> list[int]:
        async def heads(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")

        place.service.handler = heads
        wire = await place.wire()
        return [(await wire.ask(method="HEAD")).status for _ in range(3)]

    assert at(tmp_path, scenario) == [200, 200, 200]


def test_the_decision_comes_before_100_continue(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[bytes, list[int]]:
        wire = await place.wire()
        head = (
            f"PUT /s HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        await wire.send(head)
        said = await wire.reader.readuntil(b"\r\n\r\n")
        await wire.send(b"abc")
        await wire.hear()
        await wire.send(head)
        return said, statuses(await wire.rest())

    assert at(tmp_path, scenario, rules='[[rule]]\nname = "core"\nceiling = 1\n') == (
        b"HTTP/1.1 100 Continue\r\n\r\n",
        [403],
    )


def test_after_a_refusal_a_short_body_is_drained_and_a_long_one_ends_the_connection(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[list[int], bytes]:
        wire = await place.wire()
        short = [(await wire.ask(method="PUT", body=b"x" * 60_000)).status for _ in range(2)]
        await wire.send(b"PUT /s HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 1_000)
        return short, await wire.rest()

    short, rest = at(tmp_path, scenario, rules='[[rule]]\nname = "core"\nceiling = 0\n')

    assert short == [403, 403]
    assert b"connection: close" in rest


def test_the_gateway_answers_for_its_own_pages(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[list[Heard], int]:
        wire = await place.wire()
        await wire.ask("/things", ADA_SENDS)
        pages = [
            await wire.ask("/rate_limit", ADA_SENDS),
            await wire.ask("/meta", "Authorization: " + basic(CLIENT_ID, CLIENT_SECRET)),
            await wire.ask("/healthz"),
            await wire.ask("/readyz"),
            await wire.ask("/rate_limit", ADA_SENDS, method="HEAD"),
        ]
        return pages, len(place.service.got)

    (status, meta, alive, ready, head), asked = at(tmp_path, scenario, more='[meta]\napi = ["192.0.2.0/24"]\n')

    assert asked == 1
    assert status.json()["rate"] == {**status.json()["resources"]["core"]}
    assert (status.json()["rate"]["used"], status.headers["x-ratelimit-used"]) == (1, "1")
    assert meta.json()["api"] == ["192.0.2.0/24"]
    assert (meta.headers["x-ratelimit-limit"], meta.headers["x-ratelimit-used"]) == ("5000", "1")
    assert (alive.json(), ready.json()["status"]) == ({"status": "alive"}, "ready")
    assert head.body == b""
    assert [limits_missing(heard) for heard in (status, meta, alive, ready, head)] == [[]] * 5


def test_a_query_is_read_before_it_is_decided_and_reaches_the_service_whole(tmp_path: Path) -> None:
    body = b'{"query": "mutation { createIssue { id } }"}'

    async def scenario(place: Place) -> tuple[Heard, list[bytes], int]:
        wire = await place.wire()
        heard = await wire.ask("/graphql", ADA_SENDS, method="POST", body=body)
        await wire.send(
            f"POST /graphql HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )
        await wire.hear()
        return heard, [got.body for got in place.service.got], used(place.desk, "content")

    heard, bodies, content = at(tmp_path, scenario)

    assert (heard.headers["x-ratelimit-resource"], bodies, content) == ("graphql", [body, body], 2)


def test_a_query_beyond_a_mebibyte_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[int, int]:
        wire = await place.wire()
        await wire.send(b"POST /graphql HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b" " * 1_100_000)
        return (await wire.hear()).status, len(place.service.got)

    assert at(tmp_path, scenario) == (400, 0)


def test_a_websocket_passes_both_ways_and_holds_a_slot_of_its_own(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[int, str, bytes, int, int]:
        async def upgrades(got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert got.headers["upgrade"] == "websocket"
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            while some := await reader.read(100):
                writer.write(some.upper())

        place.service.handler = upgrades
        wire = await place.wire()
        heard = await wire.ask("/live", ADA_SENDS, "Connection: Upgrade", "Upgrade: websocket")
        await wire.send(b"ping")
        said = await wire.reader.readexactly(4)
        slots = held(place.desk, rule="concurrent_websockets")
        wire.close()
        await wait_on_loop_until(lambda: not held(place.desk, rule="concurrent_websockets"), what="the slot is free")
        return heard.status, heard.headers["x-ratelimit-used"], said, slots, held(place.desk)

    assert at(tmp_path, scenario) == (101, "1", b"PING", 1, 0)


def test_headers_for_one_connection_and_marks_pass_neither_way(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[Got, Heard]:
        async def marks(_got: Got, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
                b"X-Wharf-Cpu-Ms: 250\r\nX-Wharf-Secret: 1\r\nX-RateLimit-Limit: 7\r\nRateLimit: nonsense\r\n\r\n"
            )

        place.service.handler = marks
        heard = await place.ask(
            "/things",
            ADA_SENDS,
            "X-Wharf-Cpu-Ms: 1",
            "Connection: close, x-mine",
            "X-Mine: 1",
            "X-Forwarded-For: 1.1.1.1",
        )
        assert used(place.desk, "cpu") == 250
        return place.service.got[0], heard

    got, heard = at(tmp_path, scenario)

    assert [name for name in ("x-wharf-cpu-ms", "x-mine", "connection") if name in got.headers] == []
    assert got.headers["x-forwarded-for"] == "127.0.0.1"
    assert [name for name in ("x-hop", "keep-alive", "x-wharf-cpu-ms", "x-wharf-secret") if name in heard.headers] == []
    assert (heard.headers["x-ratelimit-limit"], heard.headers["connection"]) == ("5000", "close")
    assert '"core"' in heard.headers["ratelimit"]


def test_callers_behind_known_proxies_are_counted_by_their_own_address(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[int, str]:
        await place.ask("/things", "X-Forwarded-For: 203.0.113.9")
        return used(place.desk, "core", "address:203.0.113.9"), place.service.got[0].headers["x-forwarded-for"]

    assert at(tmp_path, scenario, more="[addresses]\nhops = 1\n") == (1, "203.0.113.9, 127.0.0.1")


def test_a_slow_head_and_a_slow_body_time_out_with_408(tmp_path: Path) -> None:
    async def scenario(place: Place) -> list[list[int]]:
        head, body = await place.wire(), await place.wire()
        await head.send(b"GET /slow HTTP/1.1\r\nHost:")
        await body.send(b"PUT /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
        return [statuses(await head.rest()), statuses(await body.rest())]

    timeouts = 'head_timeout = "100ms"\nidle_timeout = "100ms"'
    assert at(tmp_path, scenario, gateway=timeouts) == [[408], [408]]


def test_at_the_end_running_requests_are_answered_and_slots_freed(tmp_path: Path) -> None:
    async def scenario(place: Place) -> tuple[int, str, int]:
        may_end = asyncio.Event()

        async def waits(got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await may_end.wait()
            await hello(got, reader, writer)

        place.service.handler = waits
        wire = await place.wire()
        await wire.send(f"GET /s HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        await wait_on_loop_until(lambda: held(place.desk), what="the request runs")
        closing = place.desk.world.start_task(place.gateway.close(), name="close")
        await wait_on_loop_until(lambda: place.gateway.is_ending, what="the gateway ends")
        may_end.set()
        heard = await wire.hear()
        await closing
        return heard.status, heard.headers["connection"], held(place.desk)

    assert at(tmp_path, scenario) == (200, "close", 0)
