"""The service itself, resources and their fields, states, and endpoints."""

import datetime
import json
from typing import Any

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, until
from tests.spec.rules import rule
from tests.spec.server_requests import a_deployment, get, read_list, register, uuid, write
from wharf.cluster.api.settings import PortsSettings
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.deployments import DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.wire.endpoint_table import ENDPOINTS, EndpointKind

Kinds = dict[str, type | tuple[type, ...]]

JOB: Kinds = {
    "ID": str, "Name": str, "Namespace": str, "ParentID": str, "Type": str, "Priority": int, "Datacenters": list,
    "Status": str, "StatusDescription": str, "Stop": bool, "ParameterizedJob": bool, "Periodic": bool,
    "Multiregion": (dict, type(None)), "SubmitTime": int, "CreateIndex": int, "ModifyIndex": int, "JobModifyIndex": int,
    "JobSummary": dict,
}  # fmt: skip
SUMMARY: Kinds = {
    "JobID": str, "Namespace": str, "CreateIndex": int, "ModifyIndex": int, "Children": dict, "Summary": dict,
}  # fmt: skip
GROUP_COUNTS = ("Complete", "Failed", "Lost", "Queued", "Running", "Starting")
DEPLOYMENT: Kinds = {
    "ID": str, "JobID": str, "Namespace": str, "JobVersion": int, "JobCreateIndex": int, "JobModifyIndex": int,
    "JobSpecModifyIndex": int, "CreateIndex": int, "ModifyIndex": int, "EvalPriority": int, "IsMultiregion": bool,
    "Status": str, "StatusDescription": str, "TaskGroups": dict,
}  # fmt: skip
GROUP_STATE: Kinds = {
    "AutoPromote": bool, "AutoRevert": bool, "Promoted": bool, "DesiredCanaries": int, "DesiredTotal": int,
    "PlacedAllocs": int, "HealthyAllocs": int, "UnhealthyAllocs": int, "PlacedCanaries": (list, type(None)),
    "ProgressDeadline": int, "RequireProgressBy": (str, type(None)),
}  # fmt: skip


def list_invalid_fields(document: dict[str, Any], kinds: Kinds) -> list[str]:
    """Return the fields that are missing or have another type."""
    return [name for name, kind in kinds.items() if name not in document or not isinstance(document[name], kind)]


@rule("service", "json", "minimized")
@in_virtual_time
async def test_bodies_are_minimized_json() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, a_job())

        reply = await get(server, "/v1/jobs")

        assert reply.headers["content-type"] == "application/json"
        assert json.dumps(json.loads(reply.body), separators=(",", ":")).encode() == reply.body


@rule("service", "port")
def test_the_port_is_4646_unless_it_is_changed() -> None:
    assert (PortsSettings().http, PortsSettings(http=80).http) == (4646, 80)


@rule("service", "prefix")
@rule("versioning", "prefix")
def test_every_route_is_under_v1_except_the_well_known_ones() -> None:
    assert {e.path for e in ENDPOINTS if not e.path.startswith(("/v1/", "/.well-known/"))} == set()


@rule("service", "methods")
@rule("endpoints", "create", "jobs")
@in_virtual_time
async def test_one_path_creates_jobs_and_lists_them() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        created = await register(server, a_job())

        assert (created.status, created.headers["content-type"]) == (200, "application/json")
        assert [job["ID"] for job in await read_list(server, "/v1/jobs")] == ["shop"]
        assert await read_list(server, "/v1/jobs", "filter=ID+==+other") == []


@rule("service", "verbs")
def test_endpoints_are_called_by_get_put_and_delete_and_a_few_by_post_too() -> None:
    methods = {endpoint.method for endpoint in ENDPOINTS}

    assert {"GET", "PUT", "DELETE"} <= methods <= {"GET", "PUT", "DELETE", "POST"}
    assert {e.path for e in ENDPOINTS if e.method == "POST"} == {
        "/v1/client/metadata",
        "/v1/jobs/statuses",
        "/v1/node/{node_id}/desired",
        "/v1/node/{node_id}/identities",
        "/v1/node/{node_id}/identity",
    }


@rule("endpoints", "members")
@in_virtual_time
async def test_members_are_listed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        members = json.loads((await get(server, "/v1/agent/members")).body)

        assert [member["Name"].partition(".")[0] for member in members["Members"]] != []


@rule("resources", "job", "parent", "multiregion")
@rule("states", "stop")
@in_virtual_time
async def test_a_listed_job_has_all_its_fields() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, a_job())

        (job,) = await read_list(server, "/v1/jobs")

        assert list_invalid_fields(job, JOB) == []
        assert (job["ParentID"], job["Multiregion"], job["Stop"]) == ("", None, False)


@rule("resources", "summary")
@in_virtual_time
async def test_a_summary_counts_by_group_and_state() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, a_job("shop", a_group("web"), a_group("db")))

        (job,) = await read_list(server, "/v1/jobs")

        assert list_invalid_fields(job["JobSummary"], SUMMARY) == []
        counts = job["JobSummary"]["Summary"]
        assert {(group, name) for group in ("web", "db") for name in GROUP_COUNTS if counts[group][name] < 0} == set()


@rule("states", "job")
@in_virtual_time
async def test_a_job_is_pending_until_an_allocation_is_placed_and_then_running() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, a_job("shop", a_group("web", a_task(driver="mock")), type="batch"))
        (before,) = await read_list(server, "/v1/jobs")
        await cluster.ready_nodes(server, 1)
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="placed")

        async def status() -> str:
            (job,) = await read_list(server, "/v1/jobs")
            return str(job["Status"])

        assert (before["Status"], before["StatusDescription"], await status()) == ("pending", "", "running")


@rule("endpoints", "deployments")
@rule("resources", "deployment", "group-state", "progress")
@rule("states", "deployment")
@in_virtual_time
async def test_a_listed_deployment_has_all_its_fields() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
        groups = {"web": DeploymentGroup(), "db": DeploymentGroup(require_progress_by=at, placed_canaries=("a",))}
        done = "Deployment completed successfully"
        over = "Cancelled due to newer version of job"
        await write(
            server,
            DEPLOYMENTS.build_put(a_deployment(uuid(1), status=DeploymentStatus.SUCCESSFUL, status_description=done)),
            DEPLOYMENTS.build_put(
                a_deployment(uuid(2), status=DeploymentStatus.CANCELLED, status_description=over, task_groups=groups)
            ),
        )

        first, second = await read_list(server, "/v1/deployments", "stale")
        chosen = await read_list(server, "/v1/deployments", "stale&filter=Status+==+cancelled")

        assert list_invalid_fields(second, DEPLOYMENT) == []
        assert [list_invalid_fields(second["TaskGroups"][name], GROUP_STATE) for name in ("web", "db")] == [[], []]
        assert second["TaskGroups"]["web"]["RequireProgressBy"] is None
        assert datetime.datetime.fromisoformat(second["TaskGroups"]["db"]["RequireProgressBy"]) == at
        assert [(d["Status"], d["StatusDescription"]) for d in (first, second)] == [
            ("successful", done),
            ("cancelled", over),
        ]
        assert [d["ID"] for d in chosen] == [uuid(2)]


@rule("states", "stop")
@in_virtual_time
async def test_a_stopped_job_reports_that_it_was_stopped() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, a_job())
        await send_raw(server.api, "DELETE", "/v1/job/shop")

        (job,) = await read_list(server, "/v1/jobs")

        assert job["Stop"] is True


@rule("states", "texts", "deployment")
@in_virtual_time
async def test_deployments_end_as_successful_or_cancelled_with_a_description() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        update = UpdatePolicy(min_healthy_time=10 * 10**9)

        async def deploy(cpu: int) -> None:
            task = a_task(driver="mock", resources=some_resources(cpu=cpu, memory_mb=10))
            await register(server, a_job("shop", a_group("web", task, count=2, update=update)))

        def statuses() -> list[str]:
            return [d.status for d in sorted(server.replica.iter_all(DEPLOYMENTS), key=lambda d: d.create_index)]

        await deploy(10)
        await until(lambda: statuses() == ["successful"], what="the first is done")
        await deploy(20)
        await until(lambda: len(statuses()) == 2, what="the second has begun")
        await deploy(30)
        await until(lambda: statuses() == ["successful", "cancelled", "successful"], what="the third is done")

        statuses_with_text = {(d["Status"], d["StatusDescription"]) for d in await read_list(server, "/v1/deployments")}
        assert statuses_with_text == {
            ("successful", "Deployment completed successfully"),
            ("cancelled", "Cancelled due to newer version of job"),
        }


@rule("resources", "zero-times", "indexes")
@in_virtual_time
async def test_times_that_do_not_apply_are_null_and_indexes_are_counters() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        await register(server, a_job("shop", a_group("web", task, update=UpdatePolicy())))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="placed")
        allocation = next(iter(server.replica.iter_all(ALLOCATIONS)))
        paths = [e.path for e in ENDPOINTS if e.kind is EndpointKind.READ and "{" not in e.path]
        paths += [
            f"/v1/allocation/{allocation.id}",
            f"/v1/node/{allocation.node_id}",
            "/v1/job/shop",
            "/v1/job/shop/versions",
        ]

        bodies = {path: reply.body for path in paths if (reply := await get(server, path)).status == 200}

        assert len(bodies) > 15
        assert [path for path, body in bodies.items() if b'"0001-01-01' in body] == []
        assert [at for path, body in bodies.items() for at in list_invalid_indexes(json.loads(body), path)] == []


def list_invalid_indexes(value: Any, at: str) -> list[str]:
    """Return the paths of all fields named ...Index that are not integers of at least 0."""
    if isinstance(value, list):
        return [found for number, each in enumerate(value) for found in list_invalid_indexes(each, f"{at}[{number}]")]
    if not isinstance(value, dict):
        return []
    own = [f"{at}.{name}" for name, each in value.items() if name.endswith("Index") and not is_counter(each)]
    return own + [found for name, each in value.items() for found in list_invalid_indexes(each, f"{at}.{name}")]


def is_counter(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
