"""Bodies that servers accept, as large as the limits of their endpoints permit.

A generated body with a wrong value is refused by an early check, so it does not measure what the endpoint does afterwards.
Each function here builds a valid body for one endpoint: with a right secret, existing parents, and full lists and texts. A
new endpoint with a body needs a function, or a reason in `REFUSED_ENDPOINTS`.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tests.bounded_work.large_records import AUTH_METHOD, NODE_ID, RULES, SELECTOR, SOURCE, TASK, build_jobs
from tests.bounded_work.probe import Probe
from tests.bounded_work.worst_bodies import MAX_BODY_BYTES
from tests.bounded_work.worst_requests import WorstRequest, build_target
from tests.fuzz.server_records import BOOTSTRAP, NODE_NAME, NODE_SECRET, WEAK_NAME, JsonClient
from tests.waiting import wait_until
from wharf.contract.model.body_limits import MAX_TEXT_CHARS
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.node.fake_node import FakeMachine, build_fake_node
from wharf.world import SimulatedWorld

Json = dict[str, Any]


class Size(msgspec.Struct, frozen=True):
    """How large a body is to be."""

    name: str
    items: int
    """List items and map entries of the whole body."""
    max_bytes: int
    """UTF-8 bytes of the whole body."""

    @property
    def is_inline(self) -> bool:
        return self is INLINE

    def count(self, limit: int, *, parts: int = 1) -> int:
        """Return how many items a list with this limit gets, if it has `parts` of the items of the body."""
        return min(limit, self.items // parts)

    def make_map(self, limit: int = 5_000, *, share: float = 0.8) -> dict[str, str]:
        """Return a map with as many entries as permitted. Its texts take this share of the body."""
        count = self.count(limit)
        chars = int(self.max_bytes * share) // count - 20
        return {f"key{number:04}": "x" * min(MAX_TEXT_CHARS, max(1, chars)) for number in range(count)}

    def make_text(self) -> str:
        """Return the longest text of a field without a limit of its own."""
        return "x" * min(MAX_TEXT_CHARS, self.max_bytes * 9 // 10)


INLINE: Final = Size("inline", 3_900, 60_000)
"""The largest size of bodies that are decoded on the event loop."""
PADDING_FIELDS: Final = 90
"""Unknown fields that fill up a body. They are ignored, with a warning in some replies."""


class Draft(msgspec.Struct):
    """What the builder of a body may use and change."""

    size: Size
    client: JsonClient
    values: dict[str, str]
    """Ids by the name of their part of the path."""
    all_ids: Mapping[str, tuple[str, ...]]
    cleanup: list[Callable[[], Awaitable[object]]] = []
    """What to do after the request, in reverse order."""


Builder = Callable[[Draft], Awaitable[Json]]
BUILDERS: Final[dict[str, Builder]] = {}
"""The builders of bodies, by the name of their endpoint."""


def builds(*names: str) -> Callable[[Builder], Builder]:
    """Register a builder for these endpoints."""

    def register(builder: Builder) -> Builder:
        BUILDERS.update(dict.fromkeys(names, builder))
        return builder

    return register


_NEEDS_NODE: Final = "the agent of a node answers it, and none is connected here"
_NEEDS_PROVIDER: Final = "an identity provider answers it; tests/cluster/api/test_login_limits.py measures logins"
_NEEDS_LIMITER: Final = "the probe has no rate limiter in front of its API; the body has a few short texts"
REFUSED_ENDPOINTS: Final[Mapping[str, str]] = {
    "acl.bootstrap": "access control is bootstrapped once, with the body of a secret; the probe has done so",
    "acl.login": _NEEDS_PROVIDER,
    "acl.oidc.auth-url": _NEEDS_PROVIDER,
    "acl.oidc.complete": _NEEDS_PROVIDER,
    "client.identity_renew": _NEEDS_NODE,
    "client.metadata_apply": _NEEDS_NODE,
    "client.pause": _NEEDS_NODE,
    "client.restart": _NEEDS_NODE,
    "client.signal": _NEEDS_NODE,
    "host_volume.create": _NEEDS_NODE,
    "limits.ban": _NEEDS_LIMITER,
    "limits.grant": _NEEDS_LIMITER,
}
"""Endpoints that accept no body here, and why."""


# ---- jobs


def build_job(size: Size, job_id: str, kind: str = "meta") -> Json:
    """Return the largest valid job of this kind, or the largest one that is decoded on the event loop."""
    job = {"ID": job_id, "Type": "batch", **build_jobs(0)[kind]}
    if size.is_inline:
        group = {"Name": "group", "Tasks": [TASK]}
        job["TaskGroups"] = [{**group, "Name": f"group{number}"} for number in range(50)]
        job["Meta"] = INLINE.make_map(3_000, share=0.7)
    return job


@builds("job.register")
async def build_registration(draft: Draft) -> Json:
    submission = {"Source": SOURCE, "Format": "json"} if not draft.size.is_inline else None
    return {"Job": build_job(draft.size, "accepted"), "Submission": submission}


@builds("job.update", "job.plan", "job.validate")
async def build_job_of_path(draft: Draft) -> Json:
    draft.values["job_id"] = "accepted"
    return {"Job": build_job(draft.size, "accepted")}


@builds("job.parse")
async def build_job_file(draft: Draft) -> Json:
    """Return a job file with as many groups as a job may have."""
    count = 1_000 if not draft.size.is_inline else 50
    groups = "".join(
        f'group "group{number}" {{\n task "task" {{\n  driver = "raw_exec"\n }}\n}}\n' for number in range(count)
    )
    padding = "x" * (30_000 if not draft.size.is_inline else 1_000)
    meta = "".join(f'key{number} = "{padding}"\n' for number in range(7))
    return {"JobHCL": f'job "parsed" {{\n meta {{\n{meta} }}\n{groups}}}\n', "Canonicalize": True}


@builds("job.statuses-of")
async def build_job_names(draft: Draft) -> Json:
    names = [f"shop{number}" for number in range(9_999 if not draft.size.is_inline else 240)]
    return {"Jobs": [{"ID": name, "Namespace": "default"} for name in ["shop", *names]]}


@builds("job.tag")
async def build_tag(draft: Draft) -> Json:
    draft.values["job_id"] = "nightly"
    return {"Version": 0, "Description": "x" * 999}


@builds("job.revert")
async def build_revert(draft: Draft) -> Json:
    draft.values["job_id"] = "nightly"
    for number in range(2):
        changed = {"ID": "nightly", "Type": "batch", "TaskGroups": [{"Name": "web", "Tasks": [TASK]}]}
        await draft.client.send("PUT", "/v1/jobs", {"Job": {**changed, "Priority": 40 + number}})
    job = await draft.client.send("GET", "/v1/job/nightly")
    return {"JobID": "nightly", "JobVersion": job["Version"] - 1}


@builds("job.stable", "job.evaluate")
async def build_small_job_write(draft: Draft) -> Json:
    draft.values["job_id"] = "nightly"
    return {"JobID": "nightly", "JobVersion": 0, "Stable": True, "EvalOptions": {"ForceReschedule": True}}


@builds("job.dispatch")
async def build_dispatch(draft: Draft) -> Json:
    draft.values["job_id"] = "dispatched"
    meta = draft.size.make_map(4_900, share=0.5)
    job = {
        "ID": "dispatched",
        "Type": "batch",
        "ParameterizedJob": {
            "MetaRequired": list(meta),
            "MetaOptional": [f"optional{number}" for number in range(4_900)],
        },
        "TaskGroups": [{"Name": "group", "Tasks": [TASK]}],
    }
    await draft.client.send("PUT", "/v1/jobs", {"Job": job})
    return {"Payload": base64.b64encode(bytes(16 * 1024)).decode(), "Meta": meta, "IdPrefixTemplate": "x" * 200}


@builds("job.scale")
async def build_scaling(draft: Draft) -> Json:
    draft.values["job_id"] = "nightly"
    meta = {f"key{number:03}": number for number in range(600)}
    return {"Target": {"Group": "web"}, "Count": 2, "Message": "x" * 9_999, "Meta": meta}


@builds("job.rerun")
async def build_rerun(draft: Draft) -> Json:
    """Return the indexes of canceled elements: the job of the array was stopped."""
    draft.values["job_id"] = "sweep"
    group = {"Name": "train", "Array": {"Size": 100_000, "MaxRunning": 1}, "Tasks": [TASK]}
    await draft.client.send("PUT", "/v1/jobs", {"Job": {"ID": "sweep", "Type": "batch", "TaskGroups": [group]}})
    await draft.client.send("DELETE", "/v1/job/sweep")
    count = draft.size.count(10_000)
    return {"Group": "train", "Indexes": ",".join(str(10_000 + 2 * number) for number in range(count))}


@builds("job.stop-elements")
async def build_stop_elements(draft: Draft) -> Json:
    """Return the indexes of elements that have not begun."""
    draft.values["job_id"] = "sweep"
    group = {"Name": "train", "Array": {"Size": 100_000, "MaxRunning": 1}, "Tasks": [TASK]}
    await draft.client.send("PUT", "/v1/jobs", {"Job": {"ID": "sweep", "Type": "batch", "TaskGroups": [group]}})
    count = draft.size.count(10_000)
    return {"Group": "train", "Indexes": ",".join(str(10_000 + 2 * number) for number in range(count))}


async def start_run(draft: Draft, **group: Any) -> None:
    """Register a run with two steps, the second of which waits for the first one or for an answer. No node may run it."""
    draft.values["job_id"] = "run"
    steps = [{"Name": "build", "Tasks": [TASK]}, {"Name": "ship", "Tasks": [TASK], **group}]
    job = {"ID": "run", "Type": "batch", "Datacenters": ["nowhere"], "TaskGroups": steps}
    await draft.client.send("PUT", "/v1/jobs", {"Job": job})
    draft.cleanup.append(partial(draft.client.send, "DELETE", "/v1/job/run"))


@builds("flow.cancel")
async def build_cancellation(draft: Draft) -> Json:
    await start_run(draft, Depends=[{"On": "build"}])
    return {"Text": "x" * 1_024}


@builds("flow.answer")
async def build_gate_answer(draft: Draft) -> Json:
    await start_run(draft, Gate={"Ask": "now?"})
    return {"Step": "ship", "Answer": "approve", "Text": "x" * 1_024}


@builds("flow.retry")
async def build_retry(draft: Draft) -> Json:
    """Return the steps of a run that was canceled, each named many times."""
    await start_run(draft, Depends=[{"On": "build"}])
    await draft.client.send("PUT", "/v1/job/run/cancel", {"AtOnce": True})
    return {"Steps": ["build", "ship"] * (draft.size.count(500) // 2)}


@builds("flow.backfill")
async def build_backfill(draft: Draft) -> Json:
    """Return the slots of a day, each of which has no run."""
    draft.values["job_id"] = "hourly"
    schedule = {"Specs": ["7 * * * *"], "Enabled": True}
    group = {"Name": "main", "Tasks": [TASK]}
    job = {"ID": "hourly", "Type": "batch", "Periodic": schedule, "Flow": {"Overlap": "queue"}, "TaskGroups": [group]}
    await draft.client.send("PUT", "/v1/jobs", {"Job": job})
    return {"From": "2025-11-01T00:00:00Z", "To": "2025-11-02T00:00:00Z", "Max": 24}


@builds("evaluation.delete")
async def build_deletion(draft: Draft) -> Json:
    """Return the ids of evaluations that wait, because the broker is paused. Each is repeated."""
    path = "/v1/operator/scheduler/configuration"
    draft.cleanup.append(partial(draft.client.send, "PUT", path, {"PauseEvalBroker": False}))
    await draft.client.send("PUT", path, {"PauseEvalBroker": True})
    count = draft.size.count(200, parts=40)
    replies = [await draft.client.send("PUT", "/v1/job/nightly/evaluate", {"JobID": "nightly"}) for _ in range(count)]
    ids = [reply["EvalID"] for reply in replies]
    return {"EvalIDs": (ids * 7_281)[: min(7_281, draft.size.max_bytes // 42)]}


# ---- deployments


async def start_deployment(client: JsonClient, *, canaries: int = 0) -> tuple[str, list[str]]:
    """Register a new version of a service job, and return its deployment with the allocations that it has placed."""
    old = {each["ID"] for each in await client.send("GET", "/v1/job/deployed/deployments")}
    group = {"Name": "group", "Count": 1, "Tasks": [TASK], "Update": {"Canary": canaries, "MaxParallel": 1}}
    job = {"ID": "deployed", "Type": "service", "TaskGroups": [group], "Meta": {"version": f"{len(old)}"}}
    await client.send("PUT", "/v1/jobs", {"Job": job})

    def find_placed() -> tuple[str, list[str]] | None:
        new = [each["ID"] for each in client.read("/v1/job/deployed/deployments") if each["ID"] not in old]
        placed = [each["ID"] for each in client.read(f"/v1/deployment/allocations/{new[0]}")] if new else []
        return (new[0], placed) if placed else None

    found = await asyncio.to_thread(wait_until, find_placed, what="the deployment has placed an allocation")
    assert found is not None
    return found


@builds("deployment.fail", "deployment.pause", "deployment.unblock")
async def build_deployment_write(draft: Draft) -> Json:
    draft.values["deployment_id"], _ = await start_deployment(draft.client)
    return {"DeploymentID": draft.values["deployment_id"], "Pause": True}


@builds("deployment.health")
async def build_health(draft: Draft) -> Json:
    draft.values["deployment_id"], (allocation, *_) = await start_deployment(draft.client)
    count = min(10_000, draft.size.max_bytes // 42, draft.size.items)
    return {"DeploymentID": draft.values["deployment_id"], "HealthyAllocationIDs": [allocation] * count}


@builds("deployment.promote")
async def build_promotion(draft: Draft) -> Json:
    deployment, allocations = await start_deployment(draft.client)
    for canaries in (0, 1):
        deployment, allocations = await start_deployment(draft.client, canaries=canaries)
        health = {"DeploymentID": deployment, "HealthyAllocationIDs": allocations}
        await draft.client.send("PUT", f"/v1/deployment/allocation-health/{deployment}", health)
    draft.values["deployment_id"] = deployment
    return {"DeploymentID": deployment, "Groups": ["group"] * draft.size.count(4_999)}


# ---- search


@builds("search.prefix")
async def build_prefix_search(draft: Draft) -> Json:
    return {"Prefix": draft.size.make_text(), "Context": "all"}


@builds("search.fuzzy")
async def build_fuzzy_search(draft: Draft) -> Json:
    return {"Text": draft.size.make_text(), "Context": "all"}


# ---- nodes


@builds("node.register")
async def build_node(draft: Draft) -> Json:
    """Return the registration of the probe's node with full maps: what a caller with its secret can store."""
    draft.values["node_id"] = NODE_ID
    node = build_fake_node(NODE_ID, FakeMachine(name=NODE_NAME), SimulatedWorld(1).now_ns())
    attributes = {**(node.attributes or {}), **draft.size.make_map(4_900, share=0.4)}
    if draft.size.is_inline:
        return {"Node": replace(node, attributes=attributes), "SecretID": NODE_SECRET}
    links = draft.size.make_map(4_900, share=0.1)
    return {
        "Node": replace(node, attributes=attributes, meta=draft.size.make_map(4_900, share=0.3), links=links),
        "SecretID": NODE_SECRET,
    }


@builds("node.drain", "node.leave")
async def build_drain(draft: Draft) -> Json:
    draft.values["node_id"] = NODE_ID
    return {"DrainSpec": None, "MarkEligible": True, "Meta": draft.size.make_map()}


@builds("node.eligibility")
async def build_eligibility(draft: Draft) -> Json:
    draft.values["node_id"] = NODE_ID
    return {"Eligibility": "eligible"}


@builds("node.fetch")
async def build_fetch(draft: Draft) -> Json:
    draft.values["node_id"] = NODE_ID
    ids = draft.all_ids["alloc_id"]
    return {"IDs": (list(ids) * 1_000)[: min(1_000, draft.size.max_bytes // 42)], "SharesJobs": True}


@builds("node.report")
async def build_report(draft: Draft) -> Json:
    """Return a report about the allocations of the node: ten events for each of many tasks."""
    draft.values["node_id"] = NODE_ID
    event = {"Type": "Driver Failure", "Time": 1, "Details": {"driver_error": "x" * 400}}
    count, event_count = (3, 5) if draft.size.is_inline else (150, 10)
    state = {"State": "running", "Events": [event] * event_count}
    states = {f"task{number}": state for number in range(count)}
    reports = [{"ID": id, "ClientStatus": "running", "TaskStates": states} for id in draft.all_ids["alloc_id"]]
    return {"Allocations": reports}


@builds("node.identities")
async def build_identities(draft: Draft) -> Json:
    draft.values["node_id"] = NODE_ID
    identities = [{"Name": f"identity{number}", "Audience": ["x"]} for number in range(100)]
    task = {**TASK, "Identities": identities}
    job = {"ID": "identities", "Type": "batch", "TaskGroups": [{"Name": "group", "Tasks": [task]}]}
    await draft.client.send("PUT", "/v1/jobs", {"Job": job})

    def find_allocation() -> str:
        return "".join(each["ID"] for each in draft.client.read("/v1/job/identities/allocations"))

    allocation = await asyncio.to_thread(wait_until, find_allocation, what="the job is placed")
    return {"AllocID": allocation, "Task": "server", "Names": [each["Name"] for each in identities]}


# ---- pools, namespaces, quotas, volumes


@builds("node_pool.store", "node_pool.update")
async def build_pool(draft: Draft) -> Json:
    draft.values["pool_name"] = "gpu"
    return {"Name": "gpu", "Description": "x" * 256, "Meta": draft.size.make_map()}


@builds("namespace.store", "namespace.update")
async def build_namespace(draft: Draft) -> Json:
    draft.values["namespace_name"] = "dev"
    return {"Name": "dev", "Description": "x" * 256, "Meta": draft.size.make_map()}


@builds("quota.store", "quota.update")
async def build_quota(draft: Draft) -> Json:
    draft.values["quota_name"] = "small"
    devices = [{"Name": f"device{number:04}", "Count": 1} for number in range(draft.size.count(4_999, parts=18))]
    return {"Name": "small", "Limits": [{"Region": "global", "RegionLimit": {"CPU": 100, "Devices": devices}}]}


@builds("host_volume.register")
async def build_volume(draft: Draft) -> Json:
    """Return a volume of another name each time: a node has one of a name."""
    taken = await draft.client.send("GET", "/v1/volumes?type=host")
    volume = {
        "Name": f"accepted{len(taken)}",
        "NodeID": NODE_ID,
        "HostPath": "/srv/accepted",
        "RequestedCapabilities": [{"AccessMode": "single-node-writer", "AttachmentMode": "file-system"}],
        "Parameters": INLINE.make_map(3_000, share=0.7),
    }
    return {"Volume": volume}


# ---- access


@builds("acl.policy.store")
async def build_policy(draft: Draft) -> Json:
    draft.values["name"] = "accepted"
    rules = RULES if not draft.size.is_inline else "\n".join(RULES.splitlines()[:70])
    return {"Name": "accepted", "Description": "x" * 256, "Rules": rules}


@builds("acl.token.create", "acl.token.update")
async def build_token(draft: Draft) -> Json:
    names = [f"policy{number:04}" for number in range(3_900)]  # 62 kB.
    return {"AccessorID": draft.values.get("accessor_id", ""), "Name": "accepted", "Type": "client", "Policies": names}


@builds("acl.session.create")
async def build_session(_draft: Draft) -> Json:
    return {"Address": "x" * 20_000, "Browser": "x" * 40_000}


@builds("acl.token.exchange")
async def build_exchange(draft: Draft) -> Json:
    reply = await draft.client.send("PUT", "/v1/acl/token/onetime")
    return {"OneTimeSecretID": reply["OneTimeToken"]["OneTimeSecretID"]}


@builds("acl.role.create", "acl.role.update")
async def build_role(draft: Draft) -> Json:
    links = [{"Name": WEAK_NAME}] * draft.size.count(4_999, parts=18)
    name = "staff" if draft.values else f"accepted-{draft.size.name}"
    return {"ID": draft.values.get("role_id", ""), "Name": name, "Description": "x" * 256, "Policies": links}


@builds("acl.method.create", "acl.method.update")
async def build_method(draft: Draft) -> Json:
    config: Json = dict(AUTH_METHOD["Config"])  # type: ignore[arg-type]
    config["BoundAudiences"] = [f"audience{number:04}" for number in range(draft.size.count(4_999, parts=2))]
    config["ClaimMappings"] = {f"claim{number}": f"name{number}" for number in range(draft.size.count(1_000, parts=4))}
    draft.values["name"] = "accepted"
    return {**AUTH_METHOD, "Name": "accepted", "Config": config}


@builds("acl.method.secrets")
async def build_key(draft: Draft) -> Json:
    draft.values["name"] = "sealed"
    await draft.client.send("PUT", "/v1/acl/auth-method", {**AUTH_METHOD, "Name": "sealed"})
    return {"PublicKey": base64.b64encode(bytes(31) + b"\x09").decode()}


@builds("acl.rule.create", "acl.rule.update")
async def build_rule(draft: Draft) -> Json:
    await draft.client.send("PUT", "/v1/acl/auth-method", {**AUTH_METHOD, "Name": "ruled"})
    body = {
        "AuthMethod": "ruled",
        "Selector": SELECTOR,
        "BindType": "role",
        "BindName": "staff",
        "Description": "x" * 256,
    }
    if not draft.values:
        return body
    draft.values["rule_id"] = (await draft.client.send("PUT", "/v1/acl/binding-rule", body))["ID"]
    return {**body, "ID": draft.values["rule_id"]}


@builds("acl.identity.introduction")
async def build_introduction(_draft: Draft) -> Json:
    return {"TTL": "5m", "NodeName": "x" * 200, "NodePool": "default"}


# ---- variables and settings


@builds("variable.put")
async def build_variable(draft: Draft) -> Json:
    draft.values["path"] = "accepted"
    count = draft.size.count(1_900)
    return {"Items": {f"key{number:04}": "x" * 20 for number in range(count)}}


@builds("agent.set_schedulers_config")
async def build_agent_schedulers(_draft: Draft) -> Json:
    return {"num_schedulers": 1}


@builds("operator.set_scheduler")
async def build_scheduler(_draft: Draft) -> Json:
    return {"SchedulerAlgorithm": "spread"}


@builds("operator.set_autopilot")
async def build_autopilot(_draft: Draft) -> Json:
    return {"CleanupDeadServers": True, "LastContactThreshold": "200ms"}


# ---- requests


@asynccontextmanager
async def open_accepted_request(probe: Probe, endpoint: Endpoint, size: Size) -> AsyncIterator[WorstRequest]:
    """Yield a request of this size that the endpoint accepts once. What it needs is stored first."""
    target, values = build_target(endpoint, probe.ids)
    draft = Draft(size, JsonClient(probe.target.port, BOOTSTRAP), values, probe.ids)
    body = await BUILDERS[endpoint.name](draft)
    target, _ = build_target(endpoint, {name: (value,) for name, value in values.items()})
    data = msgspec.json.encode(body)
    if not size.is_inline:
        data = pad(data, size.max_bytes)
    yield WorstRequest(endpoint.name, f"accepted, {size.name}", endpoint.method, target, partial(bytes, data))
    for undo in reversed(draft.cleanup):
        await undo()


def get_largest_size(endpoint: Endpoint) -> Size:
    """Return how large a body of the endpoint may be."""
    return Size("largest", 99_000, min(endpoint.max_body_bytes or MAX_BODY_BYTES, MAX_BODY_BYTES))


def pad(body: bytes, size: int) -> bytes:
    """Return the body, a JSON object, with unknown fields that fill it up to at most `size` bytes."""
    fields = []
    left = size - len(body) - 10
    for number in range(PADDING_FIELDS):
        chars = min(MAX_TEXT_CHARS, left - 20)
        if chars <= 0:
            break
        field = b',"Padding%02d":"%b"' % (number, b"x" * chars)
        fields.append(field)
        left -= len(field)
    return body[:-1] + b"".join(fields) + b"}"
