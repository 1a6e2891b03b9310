"""Streams for operators: server-sent events on the admin socket and port, recorded changes, and their command."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from tests.limits.admin.test_commands import ADA_HEADER, TWO_AN_HOUR, Operator, run_as_operator
from tests.limits.decision_services import INSTALLATION
from tests.sinks.receivers import read_ids, running_receiver
from tests.waiting import wait_on_loop_until
from wharf.limits.admin import streams
from wharf.limits.admin.errors import ActionError
from wharf.limits.admin.server import AdminServer
from wharf.limits.admin.streams import MAX_AUDIT_ENTRIES, list_audit_records, read_last_event_id, read_types
from wharf.limits.config import LimiterSettings
from wharf.limits.decisions.record_publisher import MAX_UNPUBLISHED_DECISIONS
from wharf.limits.decisions.records import RECORD_TYPES, DecisionRecord, OperatorChangeRecord
from wharf.limits.rate_limiter import RateLimiter
from wharf.sinks.stream import MAX_FOLLOWERS
from wharf.world import RealWorld

T = TypeVar("T")
TOKEN = "a-token-of-the-admin-port"


class Events:
    """The events of one connection to a stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.head = b""

    async def read_head(self) -> bytes:
        self.head = await self._reader.readuntil(b"\r\n\r\n")
        return self.head

    async def read_event(self) -> dict[str, str]:
        """Return the fields of the next event or comment."""
        async with asyncio.timeout(20):
            text = (await self._reader.readuntil(b"\n\n")).decode()
        return {name: value for name, _, value in (line.partition(": ") for line in text.strip().splitlines())}

    async def read_record(self) -> Any:
        return json.loads((await self.read_event())["data"])

    async def is_ended(self) -> bool:
        """Read until the limiter ends the stream; return whether nothing but comments was left."""
        async with asyncio.timeout(20):
            rest = await self._reader.read()
        return set(rest.split(b"\n\n")) <= {b"", b": keep-alive"}


@contextlib.asynccontextmanager
async def following(operator: Operator, query: str = "", *headers: str) -> AsyncIterator[Events]:
    """Follow the stream of a running limiter; the first event has been read."""
    async with connected(operator, query, *headers) as events:
        assert (await events.read_head()).startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        assert await events.read_event() == {"retry": "2000", "event": "following", "data": "{}"}
        yield events


@contextlib.asynccontextmanager
async def connected(operator: Operator, query: str, *headers: str) -> AsyncIterator[Events]:
    reader, writer = await asyncio.open_unix_connection(str(operator.folder / "data" / "admin.sock"), limit=1 << 22)
    lines = "".join(f"{line}\r\n" for line in headers)
    writer.write(f"GET /stream{query} HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode())
    try:
        yield Events(reader, writer)
    finally:
        writer.close()


async def grant(operator: Operator, amount: int) -> None:
    await operator.actions.add_grant("ada", resource="core", amount=amount, for_ms=60_000, by="ops", reason="a test")


def test_a_stream_has_the_changes_by_operators_as_events(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> dict[str, str]:
        async with following(operator) as events:
            await operator.send(ADA_HEADER)
            await grant(operator, 7)
            return await events.read_event()

    event = run_as_operator(tmp_path, scenario)

    record = msgspec.json.decode(event["data"], type=OperatorChangeRecord)
    assert (event["event"], event["id"]) == ("limits.audit", record.id)
    assert (record.data.action, record.data.operator, record.data.reason) == ("grant", "ops", "a test")
    assert (record.data.details["owner"], record.data.details["amount"]) == ("user:ada", 7)
    assert record.source.endswith(f"/limits-{os.getpid()}")


def test_a_stream_can_have_decisions_too(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[Any]:
        async with following(operator, "?types=limits.decision,limits.audit") as events:
            for _ in range(3):
                await operator.send(ADA_HEADER, target="/repos/acme/site")
            return [await events.read_record() for _ in range(1)]

    (record,) = run_as_operator(tmp_path, scenario)

    decision = msgspec.convert(record, DecisionRecord)
    data = decision.data
    assert (decision.severity, decision.id, data.verdict, data.refused_by) == (
        "warning",
        data.request_id,
        "primary",
        "core",
    )
    assert (data.caller, data.resource, data.bucket, data.endpoint) == (
        "user:ada",
        "acme/site",
        "core",
        "GET /repos/acme/site",
    )
    assert [(limit.rule, limit.before, limit.ceiling, limit.is_exceeded) for limit in data.limits[:1]] == [
        ("core", 2, 2, True)
    ]
    assert data.limits[0].free_at is not None


@pytest.mark.parametrize("is_header", [True, False])
def test_a_client_continues_after_its_last_event(tmp_path: Path, is_header: bool) -> None:
    async def scenario(operator: Operator) -> list[int]:
        async with following(operator) as events:
            for amount in (1, 2, 3):
                await grant(operator, amount)
            first = await events.read_event()
        header, query = (f"Last-Event-ID: {first['id']}", "") if is_header else ("X: y", f"?after={first['id']}")
        async with following(operator, query, header) as events:
            return [(await events.read_record())["data"]["details"]["amount"] for _ in range(2)]

    assert run_as_operator(tmp_path, scenario) == [2, 3]


def test_an_idle_stream_sends_comments_and_ends_with_the_limiter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.01)

    async def scenario(operator: Operator) -> bool:
        async with following(operator) as events:
            assert await events.read_event() == {"": "keep-alive"}
            await operator.running.decision_service.records.stream.close()
            return await events.is_ended()

    assert run_as_operator(tmp_path, scenario)


def test_the_number_of_clients_is_limited(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> bytes:
        stream = operator.running.decision_service.records.stream
        followers = [stream.follow() for _ in range(MAX_FOLLOWERS)]
        async with connected(operator, "") as events:
            head = await events.read_head()
        for follower in followers:
            stream.unfollow(follower)
        return head

    assert run_as_operator(tmp_path, scenario).startswith(b"HTTP/1.1 503 ")


def test_a_client_that_disconnects_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.01)

    async def scenario(operator: Operator) -> None:
        stream = operator.running.decision_service.records.stream
        async with following(operator):
            assert stream.wants("limits.audit")
        await wait_on_loop_until(lambda: not stream.wants("limits.audit"), what="no follower")

    run_as_operator(tmp_path, scenario)


def test_the_stream_on_the_port_needs_the_token(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(TOKEN)

    async def scenario(operator: Operator) -> list[bytes]:
        statuses = []
        for header in ("", f"Authorization: Bearer {TOKEN}\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", operator.port)
            writer.write(f"GET /stream HTTP/1.1\r\nHost: a\r\n{header}\r\n".encode())
            statuses.append((await reader.readuntil(b"\r\n"))[9:12])
            writer.close()
        return statuses

    more = f'admin_listen = "127.0.0.1:0"\nadmin_token_file = "{token_file}"\n'
    assert run_as_operator(tmp_path, scenario, more=more) == [b"401", b"200"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, {"limits.audit"}),
        ({"types": "all"}, {"limits.decision", "limits.audit", "sink.loss"}),
        ({"types": "limits.decision"}, {"limits.decision"}),
    ],
)
def test_types_are_those_of_the_query(query: dict[str, str], expected: set[str]) -> None:
    assert read_types(query) == expected


@pytest.mark.parametrize("types", ["", "limits", "limits.audit,", "limits.audit,x"])
def test_an_unknown_type_is_refused_with_the_known_ones(types: str) -> None:
    with pytest.raises(ActionError, match=r"use all, or some of limits\.decision, limits\.audit, sink\.loss"):
        read_types({"types": types})


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET / HTTP/1.1\r\nlast-event-id: a-1 \r\nHost: a\r\n\r\n", "a-1"),
        (b"GET / HTTP/1.1\r\nX-Last-Event-ID: a\r\n\r\n", "q"),
        (b"GET / HTTP/1.1\r\n\r\n", "q"),
    ],
)
def test_the_last_event_is_read_from_its_header(head: bytes, expected: str) -> None:
    assert read_last_event_id(head, {"after": "q"}) == expected


def test_decisions_for_slow_sinks_are_dropped_and_counted(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[int, int]:
        service = operator.running.decision_service
        async with following(operator, "?types=limits.decision"):
            await operator.send(ADA_HEADER)
            logged = next(iter(service.decision_log.list_recent()))
            for _ in range(MAX_UNPUBLISHED_DECISIONS + 3):
                service.records.queue_decision(logged)
            return len(service.records.waiting), service.records.dropped

    assert run_as_operator(tmp_path, scenario) == (MAX_UNPUBLISHED_DECISIONS, 3)


# -- sinks of a gateway ----------------------------------------------------------------------------------------------


def test_a_gateway_sends_its_records_to_the_sinks_of_its_settings(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        for _ in range(3):
            await operator.send(ADA_HEADER)
        await grant(operator, 1)
        stream = operator.running.decision_service.records.stream
        await wait_on_loop_until(lambda: [sink.sent for sink in stream.describe_sinks()] == [1, 2], what="all records")
        return await operator.run("metrics")

    with running_receiver() as receiver:
        more = f"""
[[sink]]
name = "changes"
kind = "file"
path = "changes.jsonl"
types = ["limits.audit"]
[[sink]]
name = "collector"
kind = "http"
url = "{receiver.url}"
"""
        metrics = run_as_operator(tmp_path, scenario, more=more)
        records = [json.loads(line) for request in receiver.accepted for line in request.body.splitlines()]

    assert sorted(record["type"] for record in records) == ["limits.audit", "limits.decision"]
    (change,) = read_ids((tmp_path / "changes.jsonl").read_bytes())
    assert change in {record["id"] for record in records}
    assert 'wharf_limits_sink_records_total{sink="collector",outcome="sent"} 2' in metrics
    assert 'wharf_limits_sink_waiting_records{sink="changes"} 0' in metrics


def test_records_that_were_not_delivered_are_sent_after_a_restart_of_the_gateway(tmp_path: Path) -> None:
    async def refuse(operator: Operator) -> None:
        for _ in range(3):
            await operator.send(ADA_HEADER)

    async def wait_for_record(operator: Operator) -> None:
        stream = operator.running.decision_service.records.stream
        await wait_on_loop_until(lambda: stream.describe_sinks()[0].sent, what="the record")

    with running_receiver() as receiver:
        receiver.stop()
        more = f'[[sink]]\nname = "collector"\nkind = "otlp"\nurl = "{receiver.url}"\n'
        run_as_operator(tmp_path, refuse, more=more)
        receiver.start()
        run_as_operator(tmp_path, wait_for_record, more=more)
        requests = list(receiver.accepted)

    assert [b'"stringValue":"limits.decision"' in request.body for request in requests] == [True]


# -- the audit file and the command ----------------------------------------------------------------------------------


def test_recorded_changes_are_the_newest_ones_in_order(tmp_path: Path) -> None:
    lines = [msgspec.json.encode({"at_ms": ms, "act": "ban", "by": "ops", "subject": "app:7"}) for ms in range(1_005)]
    (tmp_path / "audit.jsonl").write_bytes(b"\n".join(lines) + b'\n{"at_ms":')

    records = list_audit_records(tmp_path, "h1/p1", since_ms=0, count=10_000)
    some = list_audit_records(tmp_path, "h1/p1", since_ms=1_003, count=1)

    assert (len(records), records[0].time, records[-1].time) == (
        MAX_AUDIT_ENTRIES,
        "1970-01-01T00:00:00.005Z",
        "1970-01-01T00:00:01.004Z",
    )
    assert (some, len({record.id for record in records})) == (records[-1:], MAX_AUDIT_ENTRIES)
    assert records[0].data.details == {"subject": "app:7"}


def test_only_the_end_of_a_long_audit_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [msgspec.json.encode({"at_ms": ms, "act": "ban", "by": "ops", "id": str(ms)}) for ms in range(100, 200)]
    (tmp_path / "audit.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    monkeypatch.setattr(streams, "MAX_AUDIT_BYTES", 3 * len(lines[0]) + 10)

    records = list_audit_records(tmp_path, "h1/p1", since_ms=0, count=1_000)

    assert [record.id for record in records] == ["197", "198", "199"]


def test_without_changes_nothing_is_recorded(tmp_path: Path) -> None:
    assert list_audit_records(tmp_path, "h1/p1", since_ms=0, count=1) == []


def test_the_command_shows_recorded_changes(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[str, list[Any], str, str]:
        await operator.run("grant", "ada", "--amount", "7", "--duration", "1h", "--reason", "a \x1b test")
        await operator.run("ban", "app:7", "--duration", "1h")
        lines = await operator.run("audit", "--json", "--since", "1h")
        return (
            await operator.run("audit"),
            [json.loads(line) for line in lines.splitlines()],
            await operator.run("audit", "--count", "1"),
            await operator.run("audit", "--decisions", fails=True),
        )

    text, records, last, error = run_as_operator(tmp_path, scenario)

    first_line, second_line = text.splitlines()
    assert first_line.startswith(f"{records[0]['time']}  ")
    assert re.search(r"  grant  owner=user:ada resource=core amount=7 until=[-0-9]{10}T[:0-9]{8}Z  ", first_line)
    assert first_line.endswith("  a \\u001b test")
    assert "  ban  subject=app:7 " in second_line
    assert last == f"{second_line}\n"
    assert [record["data"]["action"] for record in records] == ["grant", "ban"]
    assert "--decisions needs --follow" in error


def test_the_command_prints_the_schema_of_all_records(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> Any:
        return json.loads(await operator.run("audit", "--schema"))

    schema = run_as_operator(tmp_path, scenario)

    assert {option["$ref"] for option in schema["anyOf"]} == {f"#/$defs/{name.__name__}" for name in RECORD_TYPES}
    assert schema["$defs"]["DecisionData"]["properties"]["limits"]["items"] == {"$ref": "#/$defs/LimitData"}


def run_command_until(
    folder: Path,
    steps: Callable[[Operator, "asyncio.subprocess.Process"], Awaitable[T]],
    *,
    rules: str = TWO_AN_HOUR,
) -> T:
    """Run `wharf limits audit --follow --decisions` in a process while the steps use the limiter; end it by Ctrl-C."""

    async def scenario(operator: Operator) -> T:
        socket = str(operator.folder / "data" / "admin.sock")
        words = ("-m", "wharf", "limits", "audit", "--follow", "--decisions", "--admin-address", socket)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            stream = operator.running.decision_service.records.stream
            await wait_on_loop_until(lambda: stream.wants("limits.decision"), what="a follower")
            return await steps(operator, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await process.communicate()

    return run_as_operator(folder, scenario, rules=rules)


def test_the_command_shows_the_requests_that_shadow_mode_lets_pass(tmp_path: Path) -> None:
    async def steps(operator: Operator, process: "asyncio.subprocess.Process") -> str:
        assert process.stdout is not None
        await operator.actions.set_ban("app:7", for_ms=60_000, by="ops", reason="")
        await process.stdout.readline()
        for headers in ([ADA_HEADER] * 3, [f"Authorization: token {INSTALLATION}"]):
            for header in headers:
                await operator.send(header)
        return "".join([(await process.stdout.readline()).decode() for _ in range(2)])

    shown = run_command_until(tmp_path, steps, rules=f"{TWO_AN_HOUR}shadow = true\n[ban]\nshadow = true\n")

    assert "  user:ada  GET /things  admitted (shadow mode: core would refuse)  " in shown
    assert "  installation:71  GET /things  admitted (shadow mode: the ban would refuse)  " in shown


def test_the_command_follows_changes_and_decisions_and_connects_again(tmp_path: Path) -> None:
    async def steps(operator: Operator, process: "asyncio.subprocess.Process") -> list[str]:
        assert process.stdout is not None
        await grant(operator, 1)
        lines = [(await process.stdout.readline()).decode()]
        stream = operator.running.decision_service.records.stream
        for follower in list(stream._followers):
            follower.end()  # The connection ends, as with a limiter that restarts.
        await wait_on_loop_until(lambda: not stream.wants("limits.decision"), what="no follower")
        await grant(operator, 2)
        for _ in range(6):
            await operator.send(ADA_HEADER, target="/things?secret=x")
        return [*lines, *[(await process.stdout.readline()).decode() for _ in range(1)]]

    first, second = run_command_until(tmp_path, steps)

    assert "  grant  owner=user:ada resource=core amount=1 " in first
    assert "  grant  owner=user:ada resource=core amount=2 " in second


def test_following_a_limiter_that_does_not_listen_is_an_error(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        return await operator.run_at(str(tmp_path / "none.sock"), "audit", "--follow", fails=True)

    assert "no limiter listens at" in run_as_operator(tmp_path, scenario)


def test_the_command_follows_all_limiters_of_a_folder(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        world = RealWorld()
        settings = [
            LimiterSettings(data_folder=tmp_path / name, admin_socket=tmp_path / f"limits-{name}.sock")
            for name in ("a", "b")
        ]
        limiters = [RateLimiter(each, world) for each in settings]
        servers = [AdminServer(limiter, world) for limiter in limiters]
        for limiter, server in zip(limiters, servers, strict=True):
            await limiter.open()
            await server.open()
        words = ("-m", "wharf", "limits", "audit", "--follow", "--json", "--admin-address", str(tmp_path))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        streams_of_all = [limiter.decision_service.records.stream for limiter in limiters]
        await wait_on_loop_until(
            lambda: all(stream.wants("limits.audit") for stream in streams_of_all), what="followers"
        )
        subjects = []
        for number, server in enumerate(servers):
            await server.actions.set_ban(f"app:{number}", for_ms=1_000, by="ops", reason="")
            subjects.append(json.loads(await process.stdout.readline())["data"]["details"]["subject"])
        process.send_signal(signal.SIGINT)
        await process.communicate()
        for limiter, server in zip(limiters, servers, strict=True):
            await server.close()
            await limiter.close()
        return subjects

    assert asyncio.run(scenario()) == ["app:0", "app:1"]
