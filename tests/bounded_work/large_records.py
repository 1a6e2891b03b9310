"""Records of the largest permitted size, and the requests that read them.

The records are written through the API, so that each is one that a caller can write. The requests come from the endpoint
table: a new read endpoint with a known id in its path needs no change here.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from tests.bounded_work.worst_requests import WorstRequest
from tests.fuzz.server_records import BOOTSTRAP, NODE_SECRET, JsonClient
from tests.kit.work import an_id
from tests.waiting import wait_until
from wharf.cluster.api.replies.encoding import RECORDS_PER_STEP
from wharf.cluster.server.cpu_budget import ReadLimits
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind, ParameterKind
from wharf.node.fake_node import FakeMachine, build_fake_node
from wharf.world import SimulatedWorld

ESCAPED_TEXT: Final = '"\n' * 950_000
"""A text that takes long to encode: each character becomes an escape. As JSON it has 3.8 MB."""
MAP: Final = {f"key{number:04}": '"quoted"\n' * 2 for number in range(4_500)}
"""A map of almost the largest number of entries."""
TASK: Final = {"Name": "server", "Driver": "mock", "Config": {"run_for": "1h"}, "Resources": {"CPU": 1, "MemoryMB": 10}}
UPDATE: Final = {"MaxParallel": 1, "HealthCheck": "task_states", "MinHealthyTime": 0}
NOWHERE: Final = {"LTarget": "${attr.kernel.name}", "RTarget": "plan9", "Operand": "="}
"""A constraint that no node meets, so that the evaluation fails for each group."""
LIST_CPU_S: Final = ReadLimits().list_cpu_s
"""The budget of reads that are large by design: the list of a node's allocations has 86 MB."""
SMALL_WRITE_HOLD_S: Final = 0.012
"""The longest hold by a small write to a large job. It takes 4 to 9 ms, most of it to encode the record or to fork."""
NODE_ID: Final = an_id(77)
NODE_HEADERS: Final = {"X-Cluster-Node-Secret": NODE_SECRET}
SOURCE: Final = '"\n' * 240_000
"""A job file of almost the largest size that is stored."""
NAMES: Final = ["large", *(f"missing-{number:04}" for number in range(3_900))]
"""Almost as many names as a list may have."""
SELECTOR: Final = " or ".join(f'"team-{number}" in list.groups' for number in range(100))
AUTH_METHOD: Final = {
    "Name": "large",
    "Type": "JWT",
    "TokenLocality": "local",
    "MaxTokenTTL": "1h",
    "Config": {
        "JWKSURL": "https://example.com/keys",
        "BoundAudiences": NAMES,
        "SigningAlgs": ["RS256"],
        "ClaimMappings": {name: name for name in NAMES[:1_000]},
        "ListClaimMappings": {"groups": "groups"},
    },
}
RULES: Final = "\n".join(f'namespace "{number:05}" {{ policy = "read" }}' for number in range(1_000))
"""A large policy that takes less than the CPU time of one request to store."""


SMALL_BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "plan": {"Job": {"ID": "", "Type": "batch", "TaskGroups": [{"Name": "group", "Tasks": [TASK]}]}, "Diff": True},
    "scale": {"Target": {"Group": "group"}, "Count": 2},
    "stable": {"JobID": "", "JobVersion": 0, "Stable": True},
    "evaluate": {"JobID": "", "EvalOptions": {"ForceReschedule": True}},
    "revert": {"JobID": "", "JobVersion": 0},
    "dispatch": {"Meta": {}},
    "periodic/force": {},
}
"""Small bodies of writes to a stored job, by the end of their path. An empty id stands for that of the job."""


def build_jobs(version: int) -> dict[str, dict[str, Any]]:
    """Return the largest jobs, by id: in groups, tasks, entries of maps, texts, driver configuration and actions."""
    tasks = [{**TASK, "Env": {"VERSION": f"v{version}"}}]
    group = {"Name": "group", "Tasks": tasks}
    templates = [
        {"EmbeddedTmpl": ESCAPED_TEXT, "DestPath": f"local/{number}", "ChangeMode": "restart"} for number in range(2)
    ]
    nested = {f"list{number}": [{"a": number, "b": '"'}] * 900 for number in range(20)}
    actions = [{"Name": f"action{number}", "Command": "x" * 30, "Args": ['"'] * 10} for number in range(900)]
    groups = [
        {
            **group,
            "Name": f"group{number}",
            "Constraints": [NOWHERE],
            "Update": UPDATE,
            "Meta": {"version": f"{version}"},
        }
        for number in range(1_000)
    ]
    return {
        "groups": {"Type": "service", "TaskGroups": groups, "Update": UPDATE},
        "tasks": {
            "TaskGroups": [
                {"Name": "group", "Tasks": [{**tasks[0], "Name": f"task{number}", "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1}} for number in range(1_000)],
                 "EphemeralDisk": {"SizeMB": 1_100}}
            ]
        },
        "meta": {
            "Meta": MAP,
            "TaskGroups": [{**group, "Name": f"group{number}", "Meta": {**MAP, "version": f"{version}"}} for number in range(18)],
        },
        "texts": {"TaskGroups": [{"Name": "group", "Tasks": [{**tasks[0], "Templates": templates}]}]},
        "config": {"TaskGroups": [{"Name": "group", "Tasks": [{**tasks[0], "Config": {"run_for": "1h", "version": version, "nested": nested}}]}]},
        "actions": {
            "TaskGroups": [{"Name": "group", "Tasks": [{**tasks[0], "Name": f"task{number}", "Actions": actions} for number in range(6)]}]
        },
    }  # fmt: skip


async def store_large_records(port: int, job_ids: Sequence[str], *, versions: int) -> dict[str, tuple[str, ...]]:
    """Store the largest records of each noun, and return their ids by the name of their part of the path."""
    client = JsonClient(port, BOOTSTRAP)
    await register_large_node(client)
    for version in range(versions):
        jobs = build_jobs(version)
        for job_id in job_ids:
            job = {"ID": job_id, "Type": "batch", **jobs[job_id]}
            await client.send("PUT", "/v1/jobs", {"Job": job, "Submission": {"Source": SOURCE, "Format": "json"}})
            await client.send("PUT", f"/v1/job/{job_id}/versions/v{version}/tag", {"Version": version})
    evaluations, allocations, deployments = [], [], []
    for job_id in job_ids:
        evaluations.append(await wait_for_newest(client, f"/v1/job/{job_id}/evaluations", is_done))
        if job_id == "groups":
            deployments.append(await wait_for_newest(client, f"/v1/job/{job_id}/deployments"))
        else:
            allocations.append(await wait_for_newest(client, f"/v1/job/{job_id}/allocations"))
            await report_tasks(client, allocations[-1])
    policy = {"Name": "large", "Rules": RULES}
    await client.send("PUT", "/v1/acl/policy/large", policy)
    role = await client.send("PUT", "/v1/acl/role", {"Name": "large", "Policies": [{"Name": "large"}]})
    token = await client.send(
        "PUT", "/v1/acl/token", {"Name": "large", "Type": "client", "Policies": NAMES, "Roles": [{"ID": role["ID"]}]}
    )
    await client.send("PUT", "/v1/acl/auth-method", AUTH_METHOD)
    rule = {
        "AuthMethod": "large",
        "Selector": SELECTOR,
        "BindType": "role",
        "BindName": "large",
        "Description": "x" * 256,
    }
    rule = await client.send("PUT", "/v1/acl/binding-rule", rule)
    devices = [{"Name": name, "Count": 1} for name in NAMES]
    limit = {"Region": "global", "RegionLimit": {"CPU": 1_000_000, "Devices": devices}}
    await client.send("PUT", "/v1/quota", {"Name": "large", "Limits": [limit]})
    await client.send("PUT", "/v1/var/large", {"Items": {"text": '"\n' * 32_000}})
    await client.send("PUT", "/v1/namespace", {"Name": "large", "Meta": MAP})
    await client.send("PUT", "/v1/node/pools", {"Name": "large", "Meta": MAP})
    volume = {
        "Name": "large",
        "NodeID": NODE_ID,
        "HostPath": "/srv/large",
        "RequestedCapabilities": [{"AccessMode": "single-node-writer", "AttachmentMode": "file-system"}],
        "Parameters": dict(list(MAP.items())[:1_200]),
    }
    registered = await client.send("PUT", "/v1/volume/host/register", {"Volume": volume})
    return {
        "job_id": tuple(job_ids),
        "eval_id": tuple(evaluations),
        "alloc_id": tuple(allocations),
        "deployment_id": tuple(deployments),
        "node_id": (NODE_ID,),
        "name": ("large",),
        "accessor_id": (token["AccessorID"],),
        "role_id": (role["ID"],),
        "path": ("large",),
        "namespace_name": ("large",),
        "pool_name": ("large",),
        "quota_name": ("large",),
        "rule_id": (rule["ID"],),
        "volume_id": (registered["Volume"]["ID"],),
    }


async def register_large_node(client: JsonClient) -> None:
    """Register the node again, with more resources, attributes and metadata."""
    machine = FakeMachine(name="fuzzed", cpu_mhz=100_000, memory_mb=1_000_000, disk_mb=1_000_000)
    node = build_fake_node(NODE_ID, machine, SimulatedWorld(1).now_ns())
    attributes = {**(node.attributes or {}), **{name: MAP[name] for name in list(MAP)[:4_000]}}
    body = {"Node": replace(node, attributes=attributes, meta=MAP), "SecretID": NODE_SECRET}
    await client.send("PUT", f"/v1/node/{NODE_ID}/register", body, **NODE_HEADERS)
    await client.send("PUT", f"/v1/node/{NODE_ID}/heartbeat", None, **NODE_HEADERS)


async def store_many_allocations(client: JsonClient) -> None:
    """Store so many small allocations that the whole list is cached."""
    group = {"Name": "group", "Count": RECORDS_PER_STEP + 1, "Tasks": [TASK]}
    await client.send("PUT", "/v1/jobs", {"Job": {"ID": "many", "Type": "batch", "TaskGroups": [group]}})
    await wait_for_newest(client, "/v1/job/many/evaluations", is_done)


async def report_tasks(client: JsonClient, allocation_id: str, *, exit_code: int = 1) -> None:
    """Report ten events for each task of the allocation."""
    allocation = await client.send("GET", f"/v1/allocation/{allocation_id}")
    (group,) = (group for group in allocation["Job"]["TaskGroups"] if group["Name"] == allocation["TaskGroup"])
    event = {"Type": "Driver Failure", "Time": 1, "Details": {"driver_error": '"x"\n' * 5, "exit_code": f"{exit_code}"}}
    states = {task["Name"]: {"State": "running", "Events": [event] * 10} for task in group["Tasks"]}
    report = {"ID": allocation_id, "ClientStatus": "running", "TaskStates": states}
    body = {"ReportID": an_id(exit_code, 1), "Allocations": [report]}
    await client.send("PUT", f"/v1/node/{NODE_ID}/report", body, **NODE_HEADERS)


def is_done(evaluation: Mapping[str, Any]) -> bool:
    return bool(evaluation["Status"] != "pending")


async def wait_for_newest(
    client: JsonClient, path: str, is_wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True
) -> str:
    """Wait until the list has a wanted record, and return the id of the newest one."""

    def find_newest() -> str:
        wanted = [record for record in client.read(path) if is_wanted(record)]
        return str(wanted[-1]["ID"]) if wanted else ""

    return await asyncio.to_thread(wait_until, find_newest, what=f"{path} has a record")


def iter_large_reads(ids: Mapping[str, Sequence[str]]) -> Iterator[WorstRequest]:
    """Yield requests of all read endpoints for all large records: plain, indented, compressed, and with all flags."""
    for endpoint in ENDPOINTS:
        if endpoint.kind is not EndpointKind.READ or endpoint.method != "GET" or endpoint.unsupported_reason:
            continue
        if endpoint.name == "flow.run":  # None of the records is a run.
            continue
        flags = "&".join(f"{each.name}=true" for each in endpoint.parameters if each.kind is ParameterKind.FLAG)
        required = "version=0&" if endpoint.name == "job.submission" else ""
        for path in _list_paths(endpoint, ids):
            for name, query, encoding in (
                ("plain", "", ""),
                ("pretty", "pretty=true", ""),
                ("compressed", "", "gzip"),
                *((("all flags", flags, ""), ("all flags, pretty", f"{flags}&pretty=true", "gzip")) if flags else ()),
                *((("related", "related=true", ""),) if endpoint.name == "evaluation.read" else ()),
            ):
                yield WorstRequest(
                    endpoint.name,
                    f"{path} {name}",
                    "GET",
                    f"{path}?{required}{query}",
                    accept_encoding=encoding,
                    cpu_limit_s=LIST_CPU_S,
                )


def iter_large_streams() -> Iterator[WorstRequest]:
    """Yield requests that stream the events of all large records."""
    for name, query, encoding in (
        ("all events", "index=0&namespace=*", ""),
        ("jobs, compressed", "index=0&topic=Job", "gzip"),
        ("allocations", "index=0&topic=Allocation", ""),
    ):
        yield WorstRequest(
            "event.stream",
            f"stream of large records, {name}",
            "GET",
            f"/v1/event/stream?{query}",
            accept_encoding=encoding,
            cpu_limit_s=LIST_CPU_S,
            has_endless_reply=True,
            reads_until_silent=True,
        )


async def store_large_parents(port: int, job_id: str) -> tuple[str, str]:
    """Store a large job once as a parameterized and once as a periodic one, and return their ids."""
    client, large = JsonClient(port, BOOTSTRAP), build_jobs(0)[job_id]
    # Only service jobs can have `Update`.
    groups = [{name: value for name, value in group.items() if name != "Update"} for group in large["TaskGroups"]]
    job = {**large, "Type": "batch", "Update": None, "TaskGroups": groups}
    await client.send("PUT", "/v1/jobs", {"Job": {**job, "ID": "dispatched", "ParameterizedJob": {}}})
    await client.send("PUT", "/v1/jobs", {"Job": {**job, "ID": "periodic", "Periodic": {"Spec": "0 0 1 1 *"}}})
    return "dispatched", "periodic"


def iter_small_writes(job_id: str) -> Iterator[WorstRequest]:
    """Yield requests with small bodies that change or plan the stored job."""
    names = {"dispatched": ["dispatch"], "periodic": ["periodic/force"]}.get(job_id)
    for name in names or ["plan", "scale", "stable", "evaluate", "revert"]:
        body = msgspec.json.encode(SMALL_BODIES[name]).replace(b'ID":""', f'ID":"{job_id}"'.encode())
        if job_id in ("groups", "meta"):
            body = body.replace(b'"group"', b'"group0"')
        yield WorstRequest(
            "job",
            f"{name} of {job_id}",
            "PUT",
            f"/v1/job/{job_id}/{name}",
            partial(bytes, body),
            hold_limit_s=SMALL_WRITE_HOLD_S,
        )


def iter_large_writes(ids: Mapping[str, Sequence[str]]) -> Iterator[WorstRequest]:
    """Yield writes to the largest records of all nouns, in an order in which each finds its record."""
    (deployment,) = ids["deployment_id"]
    writes: list[tuple[str, str, object]] = [
        ("POST", f"/v1/deployment/pause/{deployment}", {"DeploymentID": deployment, "Pause": True}),
        ("POST", f"/v1/deployment/pause/{deployment}", {"DeploymentID": deployment, "Pause": False}),
        ("POST", f"/v1/deployment/fail/{deployment}", {"DeploymentID": deployment}),
        ("POST", "/v1/job/groups/scale", {"Target": {"Group": "group0"}, "Count": 2}),
        ("POST", "/v1/job/groups/versions/large/tag", {"Version": 1}),
        ("DELETE", "/v1/job/groups/versions/large/tag", None),
        ("POST", f"/v1/allocation/{ids['alloc_id'][0]}/stop", None),
        ("POST", f"/v1/node/{NODE_ID}/eligibility", {"Eligibility": "ineligible"}),
        ("POST", f"/v1/node/{NODE_ID}/drain", {"DrainSpec": {"Deadline": 3_600_000_000_000}}),
        ("PUT", "/v1/namespace/large", {"Name": "large", "Description": "x"}),
        ("PUT", "/v1/node/pool/large", {"Name": "large", "Description": "x"}),
        (
            "POST",
            f"/v1/acl/role/{ids['role_id'][0]}",
            {"ID": ids["role_id"][0], "Name": "large", "Policies": [{"Name": "large"}]},
        ),
        ("PUT", "/v1/operator/scheduler/configuration", {"SchedulerAlgorithm": "spread"}),
        ("PUT", "/v1/system/gc", None),
        ("PUT", "/v1/system/reconcile/summaries", None),
        ("DELETE", "/v1/job/groups", None),
        ("DELETE", "/v1/job/groups?purge=true", None),
        ("DELETE", "/v1/var/large", None),
        ("DELETE", "/v1/quota/large", None),
        ("DELETE", "/v1/namespace/large", None),
        ("DELETE", f"/v1/acl/token/{ids['accessor_id'][0]}", None),
        ("DELETE", "/v1/acl/policy/large", None),
        ("DELETE", "/v1/acl/auth-method/large", None),
        ("POST", f"/v1/node/{NODE_ID}/purge", None),
    ]
    for method, path, body in writes:
        data = b"" if body is None else msgspec.json.encode(body)
        yield WorstRequest("large record", f"{method} {path}", method, path, partial(bytes, data))


def _list_paths(endpoint: Endpoint, ids: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the path of the endpoint for each large record, or the path of a list."""
    parts = [segment.strip("{}").removesuffix("...") for segment in endpoint.path.split("/") if segment.startswith("{")]
    if len(parts) > 1 or any(part not in ids for part in parts):
        return []
    if not parts:
        return [endpoint.path]
    before, after = endpoint.path.split("{")[0], endpoint.path.split("}")[1]
    return [f"{before}{quote(value, safe='')}{after}" for value in ids[parts[0]]]
