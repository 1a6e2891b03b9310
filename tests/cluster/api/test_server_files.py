"""What servers report from their files: the audit log, and the snapshots that they have saved on schedule."""

import json
from pathlib import Path

import pytest

from tests.cluster.api.test_operator import with_member
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.file_agent import FileAgent, give_files
from tests.kit.in_memory_relay import InMemoryRelay
from tests.kit.virtual_time import in_virtual_time, until
from wharf.agent.logs.audit import AUDIT_FILE
from wharf.agent.snapshots.schedule import build_snapshot_name
from wharf.cluster.engines.snapshot_file import SNAPSHOT_MAGIC
from wharf.cluster.server.relay import RequestRelay
from wharf.cluster.state.tables import MEMBERS
from wharf.contract.model.times import HOUR, MINUTE

OPERATOR_RULES = 'operator { policy = "write" } agent { policy = "write" } namespace "*" { policy = "write" }'


def add_snapshot(server: OneServer, folder: Path, age_ns: int) -> str:
    """Add a file that begins as a snapshot does. Return its name."""
    (folder / "snapshots").mkdir(exist_ok=True)
    name = build_snapshot_name(server.world.now_ns() - age_ns)
    (folder / "snapshots" / name).write_bytes(SNAPSHOT_MAGIC)
    return name


def test_the_audit_log_has_who_did_what_with_which_result(tmp_path: Path) -> None:
    @in_virtual_time
    async def read() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            give_files(server, tmp_path)
            client = ApiClient(server)
            await client.put("/v1/namespace", {"Name": "shop"})
            await client.raw("DELETE", "/v1/namespace/default")

            log = await client.get("/v1/operator/audit")
            refused = await client.get("/v1/operator/audit", failed="true", search="namespace.delete", limit=1)

            assert [(each["Endpoint"], each["Status"] < 400) for each in log["Entries"]] == [
                ("namespace.delete", False), ("namespace.store", True),
            ]  # fmt: skip
            assert log["Entries"][1]["Index"] > 0
            assert [each["Path"] for each in refused["Entries"]] == ["/v1/namespace/default"]
            assert log["ServerID"] == server.server.identity.member_id

    read()


def test_only_management_tokens_read_the_audit_log(tmp_path: Path) -> None:
    @in_virtual_time
    async def read() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            enable_acl(server)
            server.server.agent = FileAgent(server.world, tmp_path)
            operator = ApiClient(server, await a_token(server, OPERATOR_RULES))
            manager = ApiClient(server, await a_token(server, management=True))

            assert [(await each.raw("GET", "/v1/operator/audit")).status for each in (operator, ApiClient(server), manager)] == [
                403, 403, 200,
            ]  # fmt: skip

    read()


def test_reads_of_the_audit_log_are_not_entries_of_it(tmp_path: Path) -> None:
    @in_virtual_time
    async def read() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            give_files(server, tmp_path)

            await ApiClient(server).get("/v1/operator/audit")

            assert (tmp_path / AUDIT_FILE).read_bytes() == b""

    read()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"limit": 0}, "limit is 0; it must be a number from 1 to 500"),
        ({"limit": 501}, "limit is 501; it must be a number from 1 to 500"),
        ({"search": "x" * 201}, "search has 201 characters; 200 are allowed"),
        ({"next_token": "x"}, "next_token is not one of the audit log: begin again without it"),
        ({"server_id": "nobody"}, "no server has the ID or name nobody"),
    ],
)
def test_a_request_for_the_audit_log_that_is_not_valid_is_refused(
    tmp_path: Path, query: dict[str, object], text: str
) -> None:
    @in_virtual_time
    async def read() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            give_files(server, tmp_path)

            reply = await ApiClient(server).raw("GET", "/v1/operator/audit", **query)

            assert (reply.status, reply.body.decode()) == (404 if "server_id" in query else 400, text)

    read()


def test_a_server_reads_the_files_of_another_one_by_its_name(tmp_path: Path) -> None:
    @in_virtual_time
    async def read() -> None:
        async with ACluster() as cluster:
            first, second = await cluster.a_server("m1"), await cluster.a_server("m2", leads=False)
            await with_member(first, "m2")
            await until(lambda: second.server.replica.get(MEMBERS, "m2"), what="the second server has its own record")
            give_files(second, tmp_path)
            name = add_snapshot(second, tmp_path, MINUTE)
            first.server.relay = RequestRelay(first.world, {"m2:4646": InMemoryRelay(second.api)}.__getitem__)
            client = ApiClient(first)

            snapshots = await client.get("/v1/operator/snapshots", server_id="m2")
            log = await client.get("/v1/operator/audit", server_id="m2")
            own = await client.raw("GET", "/v1/operator/snapshots")

            assert [each["Name"] for each in snapshots["Snapshots"]] == [name]
            assert log["Entries"] == []
            assert (own.status, own.body) == (501, b"this server runs without an agent: there is no disk for snapshots")

    read()


def test_snapshots_are_listed_with_the_newest_first_and_how_often_they_are_saved(tmp_path: Path) -> None:
    @in_virtual_time
    async def read() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            give_files(server, tmp_path)
            older, newer = add_snapshot(server, tmp_path, 2 * HOUR), add_snapshot(server, tmp_path, HOUR)
            add_snapshot(server, tmp_path, -HOUR)  # The clock was wrong.

            reply = await ApiClient(server).raw("GET", "/v1/operator/snapshots")
            found = json.loads(reply.body)

            assert [(each["Name"], each["SizeBytes"], each["Index"]) for each in found["Snapshots"]] == [
                (newer, len(SNAPSHOT_MAGIC), 0), (older, len(SNAPSHOT_MAGIC), 0),
            ]  # fmt: skip
            assert (found["Interval"], found["Keep"], found["Problem"]) == (HOUR, 24, "")
            assert found["Folder"] == str(tmp_path / "snapshots")

    read()
