"""Audit records of commands in tasks: who ran what where, and how it ended."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.cluster.api.test_node_channels import ACTION, EXEC, RUNS, OpenNode, build_stdin, with_node
from tests.cluster.api.test_websocket_relay import WebSocketCaller
from tests.kit.callers import a_token
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.api.access_control import CallerAuthenticator
from wharf.cluster.api.app import Api
from wharf.cluster.api.audit import AuditRecord

RULES = 'namespace "default" { capabilities = ["alloc-exec"] }'
TYPED = "rm -rf /"
SOURCE = ("10.0.0.9", 40_000)


class CollectedAudit:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    def record(self, entry: AuditRecord) -> None:
        self.records.append(entry)

    def list_fields(self, *names: str) -> list[list[Any]]:
        return [[getattr(record, name) for name in names] for record in self.records]


@asynccontextmanager
async def an_audited_task(
    cluster: ACluster, **options: Any
) -> AsyncIterator[tuple[OneServer, OpenNode, CollectedAudit]]:
    """A running task on a server with access control and an audit log."""
    server = await with_node(cluster, access=True, **options)
    audit = CollectedAudit()
    authenticator = CallerAuthenticator(server.world, is_enabled=True)
    server.api = Api(server.server, audit=audit, authenticator=authenticator)
    node = OpenNode(cluster, server)
    await node.open()
    yield server, node, audit
    await node.close()


def connect(
    server: OneServer, token: dict[str, str], query: str, path: str = EXEC, *, source: Any = SOURCE
) -> WebSocketCaller:
    async def api(scope: Any, receive: Any, send: Any) -> None:
        await server.api({**scope, "client": source}, receive, send)

    headers = [(name.encode(), value.encode()) for name, value in token.items()]
    return WebSocketCaller(api, path, query, headers=[*headers, (b"x-request-id", b"r-1")])


async def run_to_end(caller: WebSocketCaller) -> None:
    await caller.expect("websocket.accept")
    caller.send(type="websocket.receive", text=build_stdin(TYPED.encode()))
    caller.send(type="websocket.receive", text='{"stdin":{"close":true}}')
    await caller.wait_closed()


@in_virtual_time
async def test_the_begin_and_the_end_of_a_command_are_recorded_without_what_is_typed() -> None:
    async with ACluster() as cluster, an_audited_task(cluster) as (server, _node, audit):
        token = await a_token(server, RULES)
        caller = connect(server, token, 'task=server&command=["sh","-c","ls"]&tty=true')
        await pass_time(90)
        await run_to_end(caller)

        begin, end = (msgspec.to_builtins(record) for record in audit.records)
        common = {
            "request_id": "r-1", "endpoint": "client.exec", "method": "GET", "path": EXEC, "namespace": "default",
            "accessor_id": audit.records[0].accessor_id, "source": "10.0.0.9", "allocation_id": RUNS, "task": "server",
            "command": ("sh", "-c", "ls"),
        }  # fmt: skip
        assert begin == {**common, "at_ns": begin["at_ns"], "status": 101}
        assert end == {
            **common, "at_ns": end["at_ns"], "status": 200, "exit_code": 5, "duration_ms": pytest.approx(90_000, abs=99),
        }  # fmt: skip
        assert begin["accessor_id"]
        assert TYPED not in str(audit.records)


@in_virtual_time
async def test_a_job_action_is_recorded_with_its_command() -> None:
    async with ACluster() as cluster, an_audited_task(cluster) as (server, _node, audit):
        token = await a_token(server, 'namespace "default" { capabilities = ["alloc-exec", "read-job"] }')
        await run_to_end(connect(server, token, "action=greet", ACTION))

        fields = audit.list_fields("endpoint", "path", "allocation_id", "command", "status", "exit_code")
        common = ["job.action", ACTION, RUNS, ("/bin/echo", "hello", "you")]
        assert fields == [[*common, 101, None], [*common, 200, 5]]


@in_virtual_time
async def test_a_command_whose_caller_disconnects_is_recorded_without_exit_code() -> None:
    async with ACluster() as cluster, an_audited_task(cluster) as (server, node, audit):
        caller = connect(server, await a_token(server, RULES), 'task=server&command=["sh"]')
        await until(lambda: node.handler.is_running_command, what="the command")
        caller.send(type="websocket.disconnect", code=1006)
        await caller.wait_closed()

        assert audit.list_fields("status", "exit_code", "error") == [
            [101, None, ""],
            [200, None, "the caller closed the connection before the command ended"],
        ]


@in_virtual_time
async def test_denied_commands_are_recorded_with_their_caller() -> None:
    async with ACluster() as cluster, an_audited_task(cluster, driver="raw_exec") as (server, node, audit):
        reader = await a_token(server, 'namespace "default" { policy = "read" }')
        runner = await a_token(server, RULES)
        query = 'task=server&command=["sh"]'
        for token in ({}, reader, runner):  # `raw_exec` needs a further capability.
            await connect(server, token, query).wait_closed()
        await send_raw(server.api, "GET", EXEC, query=query, headers=reader)  # As pages check before a terminal.

        denied = [403, "Permission denied", EXEC]
        assert audit.list_fields("status", "error", "path") == [denied] * 4
        assert audit.list_fields("task", "command")[2] == ["server", ("sh",)]
        accessors = [record.accessor_id for record in audit.records]
        assert (accessors[0], len(set(accessors))) == ("", 3)
        assert node.handler.requests == []


@in_virtual_time
async def test_a_command_that_loses_its_access_is_recorded_with_the_reason() -> None:
    async with ACluster() as cluster, an_audited_task(cluster) as (server, node, audit):
        token = await a_token(server, RULES)
        caller = connect(server, token, 'task=server&command=["sh"]')
        await until(lambda: node.handler.is_running_command, what="the command")
        management = await a_token(server, management=True)
        accessor = audit.records[0].accessor_id
        await send_raw(server.api, "DELETE", f"/v1/acl/token/{accessor}", headers=management)
        await caller.wait_closed()

        last = audit.records[-1]
        assert (last.endpoint, last.status, last.exit_code) == ("client.exec", 403, None)
        assert last.error == "the session was ended: its token no longer permits it"


@in_virtual_time
async def test_secrets_of_tokens_in_commands_are_hidden_and_long_commands_are_cut() -> None:
    async with ACluster() as cluster, an_audited_task(cluster) as (server, _node, audit):
        token = await a_token(server, RULES)
        secret = token["x-cluster-token"]
        words = ["curl", f"-Hx:{secret}", "x" * 3_000, "y"]
        await run_to_end(connect(server, token, f"task=server&command={msgspec.json.encode(words).decode()}"))

        _, header, long_word = audit.records[0].command
        assert (header, long_word[-1]) == ("-Hx:<hidden>", "…")
        assert len(long_word) < 2_001


@in_virtual_time
async def test_a_process_that_relays_a_command_to_this_one_records_it() -> None:
    async with ACluster() as cluster, an_audited_task(cluster) as (server, _node, audit):
        token = await a_token(server, RULES)
        await run_to_end(connect(server, token, 'task=server&command=["sh"]', source=None))

        assert audit.records == []
