"""The gateway as callers and service see it: forwarding, streaming, and limit headers on every reply."""

import asyncio
from pathlib import Path

import pytest

from tests.limits.decision_services import ADA, CLIENT_ID, CLIENT_SECRET, OAUTH, count_slots, count_used, encode_basic
from tests.limits.gateway.running_gateway import (
    ReceivedRequest,
    Reply,
    RunningGateway,
    find_statuses,
    reply_hello,
    run_scenario,
)
from tests.waiting import wait_on_loop_until

ADA_SENDS = f"Authorization: token {ADA}"
HEADER_SUFFIXES = ("limit", "remaining", "used", "reset", "resource")


def find_missing_headers(reply: Reply) -> list[str]:
    """Return the names of the limit headers that a reply lacks."""
    names = [
        *(f"x-ratelimit-{name}" for name in HEADER_SUFFIXES),
        "ratelimit",
        "ratelimit-policy",
        "x-github-request-id",
    ]
    return [name for name in names if name not in reply.headers]


def test_a_request_is_forwarded_and_its_reply_has_the_limit_headers(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[Reply, ReceivedRequest]:
        return await running.request("/things?x=1", ADA_SENDS, "Accept: text/plain"), running.service.requests[0]

    reply, received = run_scenario(tmp_path, scenario)

    assert (reply.status, reply.body, find_missing_headers(reply)) == (200, b"hello", [])
    assert reply.headers["x-ratelimit-limit"] == "5000"
    assert received.line == "GET /things?x=1 HTTP/1.1"
    assert (received.headers["host"], received.headers["accept"]) == ("service.example", "text/plain")
    assert (received.headers["x-forwarded-for"], received.headers["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert received.headers["x-wharf-request-id"] == reply.headers["x-github-request-id"]


@pytest.mark.parametrize("status", [200, 204, 301, 304, 404, 418, 500, 503])
def test_every_reply_of_the_service_has_the_limit_headers(tmp_path: Path, status: int) -> None:
    async def scenario(running: RunningGateway) -> Reply:
        async def reply_with_status(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            length = b"" if status in (204, 304) else b"Content-Length: 0\r\n"
            writer.write(b"HTTP/1.1 %d Reason\r\n%s\r\n" % (status, length))

        running.service.handler = reply_with_status
        return await running.request("/things", ADA_SENDS)

    reply = run_scenario(tmp_path, scenario)

    assert (reply.status, find_missing_headers(reply)) == (status, [])


def test_a_refused_request_never_reaches_the_service(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[Reply], int]:
        caller = await running.connect()
        return [await caller.request("/things", ADA_SENDS) for _ in range(3)], len(running.service.requests)

    replies, forwarded = run_scenario(tmp_path, scenario, rules='[[rule]]\nname = "core"\nceiling = 2\n')

    assert ([reply.status for reply in replies], forwarded) == ([200, 200, 403], 2)
    assert replies[2].json()["message"].startswith("API rate limit exceeded for user ID 5")
    assert find_missing_headers(replies[2]) == []


def test_connections_to_caller_and_service_are_reused(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, int]:
        caller = await running.connect()
        for _ in range(5):
            await caller.request()
        return len(running.service.requests), running.service.connections

    assert run_scenario(tmp_path, scenario) == (5, 1)


def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[bytes]:
        async def echo_path(
            request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            path = request.line.split()[1].encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path))

        running.service.handler = echo_path
        caller = await running.connect()
        await caller.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(20)))
        return [(await caller.read_reply()).body for _ in range(20)]

    assert run_scenario(tmp_path, scenario) == [b"/%d" % n for n in range(20)]


@pytest.mark.parametrize("encoding", ["length", "chunked"])
def test_bodies_are_forwarded_completely_in_both_directions(tmp_path: Path, encoding: str) -> None:
    body = bytes(range(256)) * 8_000

    async def scenario(running: RunningGateway) -> tuple[bytes, bytes]:
        async def echo_body(
            request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            if encoding == "length":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(request.body) + request.body)
                return
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for start in range(0, len(request.body), 10_000):
                part = request.body[start : start + 10_000]
                writer.write(b"%x;note=1\r\n%s\r\n" % (len(part), part))
            writer.write(b"0\r\nX-Trailer: 1\r\n\r\n")

        running.service.handler = echo_body
        caller = await running.connect()
        if encoding == "length":
            reply = await caller.request("/up", method="PUT", body=body)
        else:
            await caller.send(b"PUT /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            for start in range(0, len(body), 7_001):
                part = body[start : start + 7_001]
                await caller.send(b"%X\r\n%s\r\n" % (len(part), part))
            await caller.send(b"0\r\n\r\n")
            reply = await caller.read_reply()
        next_reply = await caller.request("/small", method="PUT", body=b"x")
        return reply.body, next_reply.body

    assert run_scenario(tmp_path, scenario) == (body, b"x")


def test_a_reply_is_streamed_before_it_is_complete(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[bytes, int, bytes, int]:
        may_end = asyncio.Event()

        async def stream_reply(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await writer.drain()
            await may_end.wait()
            writer.write(b"5\r\nfirst\r\n0\r\n\r\n")

        running.service.handler = stream_reply
        caller = await running.connect()
        await caller.send(f"GET /s HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        head = await caller.reader.readuntil(b"\r\n\r\n")
        slots = count_slots(running.decision_service)
        may_end.set()
        body = await caller.reader.readuntil(b"0\r\n\r\n")
        return head[:15], slots, body, count_slots(running.decision_service)

    assert run_scenario(tmp_path, scenario) == (b"HTTP/1.1 200 OK", 1, b"5\r\nfirst\r\n0\r\n\r\n", 0)


def test_a_reply_has_one_date_header_whether_or_not_the_service_sends_one(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[bool, str]:
        headers = (await running.request()).headers

        async def reply_with_date(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nDate: Tue, 15 Nov 1994 08:12:31 GMT\r\nContent-Length: 0\r\n\r\n")

        running.service.handler = reply_with_date
        caller = await running.connect()
        await caller.send(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        dates = [line for line in (await caller.read_until_close()).split(b"\r\n") if line.lower().startswith(b"date:")]
        return headers["date"].endswith(" GMT"), b"; ".join(dates).decode()

    assert run_scenario(tmp_path, scenario) == (True, "Date: Tue, 15 Nov 1994 08:12:31 GMT")


def test_a_request_is_streamed_before_it_is_complete(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> bytes:
        running.service.reads_bodies = False
        is_part_read = asyncio.Event()
        body = b""

        async def read_in_two_parts(
            request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            nonlocal body
            body += await reader.readexactly(3)
            is_part_read.set()
            body += await reader.readexactly(3)
            await reply_hello(request, reader, writer)

        running.service.handler = read_in_two_parts
        caller = await running.connect()
        await caller.send(b"PUT /s HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc")
        await asyncio.wait_for(is_part_read.wait(), 60)
        await caller.send(b"def")
        await caller.read_reply()
        return body

    assert run_scenario(tmp_path, scenario) == b"abcdef"


def test_a_disconnect_of_the_caller_frees_the_slot_and_closes_the_connection_to_the_service(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, bytes]:
        received_until_close: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def wait_for_disconnect(
            _request: ReceivedRequest, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter
        ) -> None:
            received_until_close.set_result(await reader.read())

        running.service.handler = wait_for_disconnect
        caller = await running.connect()
        await caller.send(f"GET /s HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        await wait_on_loop_until(lambda: count_slots(running.decision_service), what="the request runs")
        caller.close()
        await wait_on_loop_until(lambda: not count_slots(running.decision_service), what="the slot is freed")
        return count_used(running.decision_service, "core"), await asyncio.wait_for(received_until_close, 60)

    assert run_scenario(tmp_path, scenario) == (1, b"")


@pytest.mark.parametrize(
    ("service_reply", "status"),
    [
        (b"", 502),
        (b"what?\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 502),
    ],
)
def test_a_failure_of_the_service_is_a_502_with_limit_headers_and_is_refunded(
    tmp_path: Path, service_reply: bytes, status: int
) -> None:
    async def scenario(running: RunningGateway) -> tuple[Reply, int, int]:
        async def fail(_request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(service_reply)
            writer.close()

        running.service.handler = fail
        return (
            await running.request("/things", ADA_SENDS),
            count_used(running.decision_service, "core"),
            count_slots(running.decision_service),
        )

    reply, counted, slots = run_scenario(tmp_path, scenario)

    assert (reply.status, find_missing_headers(reply), counted, slots) == (status, [], 0, 0)


def test_an_unreachable_service_is_a_502_and_a_silent_one_a_504(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[tuple[int, list[str]]]:
        async def stay_silent(
            _request: ReceivedRequest, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter
        ) -> None:
            await reader.read()

        running.service.handler = stay_silent
        silent = await running.request()
        running.service.close()
        unreachable = await running.request()
        return [(reply.status, find_missing_headers(reply)) for reply in (silent, unreachable)]

    assert run_scenario(tmp_path, scenario, gateway='upstream_timeout = "100ms"') == [(504, []), (502, [])]


def test_a_request_is_sent_again_if_the_service_closes_the_idle_connection(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[int]:
        async def close_after_first_reply(
            request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await reply_hello(request, reader, writer)
            await writer.drain()
            if len(running.service.requests) == 1:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head
                writer.close()  # Just as the next request arrives.

        running.service.handler = close_after_first_reply
        caller = await running.connect()
        return [(await caller.request()).status for _ in range(2)]

    assert run_scenario(tmp_path, scenario) == [200, 200]


def test_a_reply_that_ends_with_the_connection_is_sent_to_the_caller_in_chunks(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[Reply, bytes]:
        async def reply_until_close(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b"HTTP/1.0 200 OK\r\nX-Old: yes\r\n\r\nuntil the end")
            writer.close()

        running.service.handler = reply_until_close
        caller = await running.connect()
        reply = await caller.request()
        http_10_caller = await running.connect()
        await http_10_caller.send(b"GET /old HTTP/1.0\r\n\r\n")
        return reply, await http_10_caller.read_until_close()

    reply, http_10_reply = run_scenario(tmp_path, scenario)

    assert (reply.body, reply.headers["transfer-encoding"]) == (b"until the end", "chunked")
    assert http_10_reply.endswith(b"\r\n\r\nuntil the end")
    assert b"transfer-encoding" not in http_10_reply.lower()


@pytest.mark.parametrize(("count", "expected"), [(64, 200), (65, 502), (20_000, 502)])
@pytest.mark.parametrize("head", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n"])
def test_informational_replies_are_skipped_up_to_a_limit(
    tmp_path: Path, head: bytes, count: int, expected: int
) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, int]:
        async def reply_late(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(head * count + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        running.service.handler = reply_late
        caller = await running.connect()
        first = await caller.request()
        return first.status, (await (await running.connect()).request()).status

    assert run_scenario(tmp_path, scenario) == (expected, expected)


def test_replies_to_head_requests_have_no_body_and_keep_the_connection(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[int]:
        async def reply_with_length(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")

        running.service.handler = reply_with_length
        caller = await running.connect()
        return [(await caller.request(method="HEAD")).status for _ in range(3)]

    assert run_scenario(tmp_path, scenario) == [200, 200, 200]


def test_the_decision_comes_before_100_continue(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[bytes, list[int]]:
        caller = await running.connect()
        head = (
            f"PUT /s HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        await caller.send(head)
        interim_reply = await caller.reader.readuntil(b"\r\n\r\n")
        await caller.send(b"abc")
        await caller.read_reply()
        await caller.send(head)
        return interim_reply, find_statuses(await caller.read_until_close())

    assert run_scenario(tmp_path, scenario, rules='[[rule]]\nname = "core"\nceiling = 1\n') == (
        b"HTTP/1.1 100 Continue\r\n\r\n",
        [403],
    )


def test_after_a_refusal_a_short_body_is_drained_and_a_long_one_closes_the_connection(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], bytes]:
        caller = await running.connect()
        short = [(await caller.request(method="PUT", body=b"x" * 60_000)).status for _ in range(2)]
        await caller.send(b"PUT /s HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 1_000)
        return short, await caller.read_until_close()

    short, remaining_replies = run_scenario(tmp_path, scenario, rules='[[rule]]\nname = "core"\nceiling = 0\n')

    assert short == [403, 403]
    assert b"connection: close" in remaining_replies


def test_the_gateway_serves_its_own_pages(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[Reply], int]:
        caller = await running.connect()
        await caller.request("/things", ADA_SENDS)
        pages = [
            await caller.request("/rate_limit", ADA_SENDS),
            await caller.request("/meta", "Authorization: " + encode_basic(CLIENT_ID, CLIENT_SECRET)),
            await caller.request("/healthz"),
            await caller.request("/readyz"),
            await caller.request("/rate_limit", ADA_SENDS, method="HEAD"),
        ]
        return pages, len(running.service.requests)

    (status, meta, alive, ready, head), forwarded = run_scenario(
        tmp_path, scenario, more='[meta]\napi = ["192.0.2.0/24"]\n'
    )

    assert forwarded == 1
    assert status.json()["rate"] == {**status.json()["resources"]["core"]}
    assert (status.json()["rate"]["used"], status.headers["x-ratelimit-used"]) == (1, "1")
    assert meta.json()["api"] == ["192.0.2.0/24"]
    assert (meta.headers["x-ratelimit-limit"], meta.headers["x-ratelimit-used"]) == ("5000", "1")
    assert (alive.json(), ready.json()["status"]) == ({"status": "alive"}, "ready")
    assert head.body == b""
    assert [find_missing_headers(reply) for reply in (status, meta, alive, ready, head)] == [[]] * 5


def test_a_graphql_query_is_read_before_the_decision_and_forwarded_completely(tmp_path: Path) -> None:
    body = b'{"query": "mutation { createIssue { id } }"}'

    async def scenario(running: RunningGateway) -> tuple[Reply, list[bytes], int]:
        caller = await running.connect()
        reply = await caller.request("/graphql", ADA_SENDS, method="POST", body=body)
        await caller.send(
            f"POST /graphql HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )
        await caller.read_reply()
        return (
            reply,
            [request.body for request in running.service.requests],
            count_used(running.decision_service, "content"),
        )

    reply, bodies, content = run_scenario(tmp_path, scenario)

    assert (reply.headers["x-ratelimit-resource"], bodies, content) == ("graphql", [body, body], 2)


def test_a_graphql_query_over_a_mebibyte_is_refused_before_it_is_read_completely(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, int]:
        caller = await running.connect()
        await caller.send(b"POST /graphql HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b" " * 1_100_000)
        return (await caller.read_reply()).status, len(running.service.requests)

    assert run_scenario(tmp_path, scenario) == (400, 0)


def test_a_websocket_is_forwarded_both_ways_and_holds_a_websocket_slot(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, str, bytes, int, int]:
        async def echo_upper_case(
            request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            assert request.headers["upgrade"] == "websocket"
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            while data := await reader.read(100):
                writer.write(data.upper())

        running.service.handler = echo_upper_case
        caller = await running.connect()
        reply = await caller.request("/live", ADA_SENDS, "Connection: Upgrade", "Upgrade: websocket")
        await caller.send(b"ping")
        echo = await caller.reader.readexactly(4)
        slots = count_slots(running.decision_service, rule="concurrent_websockets")
        caller.close()
        await wait_on_loop_until(
            lambda: not count_slots(running.decision_service, rule="concurrent_websockets"), what="the slot is freed"
        )
        return reply.status, reply.headers["x-ratelimit-used"], echo, slots, count_slots(running.decision_service)

    assert run_scenario(tmp_path, scenario) == (101, "1", b"PING", 1, 0)


def test_hop_by_hop_headers_and_marks_are_not_forwarded(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[ReceivedRequest, Reply]:
        async def reply_with_marks(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
                b"X-Wharf-Cpu-Ms: 250\r\nX-Wharf-Secret: 1\r\nX-RateLimit-Limit: 7\r\nRateLimit: nonsense\r\n\r\n"
            )

        running.service.handler = reply_with_marks
        reply = await running.request(
            "/things",
            ADA_SENDS,
            "X-Wharf-Cpu-Ms: 1",
            "Connection: close, x-mine",
            "X-Mine: 1",
            "X-Forwarded-For: 1.1.1.1",
        )
        assert count_used(running.decision_service, "cpu") == 250
        return running.service.requests[0], reply

    received, reply = run_scenario(tmp_path, scenario)

    assert [name for name in ("x-wharf-cpu-ms", "x-mine", "connection") if name in received.headers] == []
    assert received.headers["x-forwarded-for"] == "127.0.0.1"
    assert [name for name in ("x-hop", "keep-alive", "x-wharf-cpu-ms", "x-wharf-secret") if name in reply.headers] == []
    assert (reply.headers["x-ratelimit-limit"], reply.headers["connection"]) == ("5000", "close")
    assert '"core"' in reply.headers["ratelimit"]


def test_callers_behind_trusted_proxies_are_counted_by_their_own_address(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, str]:
        await running.request("/things", "X-Forwarded-For: 203.0.113.9")
        return count_used(running.decision_service, "core", "address:203.0.113.9"), running.service.requests[0].headers[
            "x-forwarded-for"
        ]

    assert run_scenario(tmp_path, scenario, more="[addresses]\nhops = 1\n") == (1, "203.0.113.9, 127.0.0.1")


def test_a_slow_head_and_a_slow_body_get_408(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[list[int]]:
        head, body = await running.connect(), await running.connect()
        await head.send(b"GET /slow HTTP/1.1\r\nHost:")
        await body.send(b"PUT /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
        return [find_statuses(await head.read_until_close()), find_statuses(await body.read_until_close())]

    timeouts = 'head_timeout = "100ms"\nidle_timeout = "100ms"'
    assert run_scenario(tmp_path, scenario, gateway=timeouts) == [[408], [408]]


def test_a_closing_gateway_answers_running_requests_and_frees_their_slots(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, str, int]:
        may_end = asyncio.Event()

        async def reply_when_allowed(
            request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await may_end.wait()
            await reply_hello(request, reader, writer)

        running.service.handler = reply_when_allowed
        caller = await running.connect()
        await caller.send(f"GET /s HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        await wait_on_loop_until(lambda: count_slots(running.decision_service), what="the request runs")
        closing = running.decision_service.world.start_task(running.gateway.close(), name="close")
        await wait_on_loop_until(lambda: running.gateway.environment.is_ending, what="the gateway ends")
        may_end.set()
        reply = await caller.read_reply()
        await closing
        return reply.status, reply.headers["connection"], count_slots(running.decision_service)

    assert run_scenario(tmp_path, scenario) == (200, "close", 0)


def test_replies_of_the_gateway_show_the_scopes_of_a_token(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> Reply:
        return await running.request("/things", f"Authorization: token {OAUTH}")

    assert run_scenario(tmp_path, scenario).headers["x-oauth-scopes"] == "repo, read:org"
