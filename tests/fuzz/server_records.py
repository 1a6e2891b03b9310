"""Preparation of a fuzzed server: records of every kind with known ids, and tokens with known secrets."""

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any, Final

import msgspec

from tests.builders import (
    a_batch_job,
    a_group,
    a_job,
    a_parameterized_job,
    a_periodic_job,
    a_service,
    a_system_job,
    a_task,
)
from tests.fuzz.bodies import TEXTS
from tests.fuzz.generated_requests import HOST, RequestMaterial
from tests.kit.work import an_id
from tests.waiting import wait_until
from wharf.contract.model.jobs.job import Job
from wharf.node.fake_node import FakeMachine, build_fake_node
from wharf.world import SimulatedWorld

BOOTSTRAP: Final = "b0075742-0000-4000-8000-5ec2e7000000"
WEAK_NAME: Final = "reader"
NODE_NAME: Final = "fuzzed"
NODE_SECRET: Final = an_id(77, 1)
ITEM: Final = "a-secret-of-a-variable-that-no-log-shows"


def jobs() -> list[Job]:
    """Return the jobs that are registered before the test."""
    mock = a_task("server", driver="mock", config={"run_for": "1h"})
    return [
        a_job("shop", a_group("web", mock, count=2, services=(a_service(),)), meta={"a": "b"}),
        a_batch_job("nightly", a_group("web", mock)),
        a_periodic_job("cron"),
        a_parameterized_job("convert"),
        a_system_job("agent", a_group("web", mock)),
        a_job("a/b", a_group("web", mock)),
    ]


class JsonClient:
    """An HTTP client that creates the records."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self.token = token

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        return await asyncio.to_thread(self._send_json, method, path, body, headers)

    def all_placed(self) -> list[dict[str, Any]]:
        """Return the allocations once all jobs are placed, else an empty list. Blocks until the reply."""
        found = self.read("/v1/allocations")
        return found if len(found) >= 4 else []

    def read(self, path: str) -> list[dict[str, Any]]:
        """Return the decoded list. Blocks until the reply."""
        found: list[dict[str, Any]] = self._send_json("GET", path, None, {})
        return found

    def _send_json(self, method: str, path: str, body: object, headers: dict[str, str]) -> Any:
        """Send a request and return the decoded reply. Raises `AssertionError` if it is refused."""
        data = None if body is None else msgspec.json.encode(body)
        all_headers = headers or ({"X-Cluster-Token": self.token} if self.token else {})
        request = urllib.request.Request(f"http://{HOST}:{self._port}{path}", data, headers=all_headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                data = reply.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from error
        return json.loads(data) if data else None


def samples() -> dict[str, tuple[bytes, ...]]:
    """Return valid bodies by the name of their endpoint."""
    registrations = tuple(msgspec.json.encode({"Job": job}) for job in jobs())
    return {
        "job.register": registrations, "job.update": registrations, "job.validate": registrations, "job.plan": registrations,
        "job.scale": (b'{"Target":{"Group":"web"},"Count":3}',),
        "job.dispatch": (b'{"Payload":"aGVsbG8=","Meta":{}}',),
        "job.tag": (b'{"Version":0,"Description":"x"}',),
        "job.revert": (b'{"JobVersion":0}',),
        "job.stable": (b'{"JobVersion":0,"Stable":true}',),
        "job.parse": (
            b'{"JobHCL":"job \\"x\\" { type = \\"batch\\" }"}',
            b'{"JobHCL":"{\\"job\\":{\\"x\\":{\\"type\\":\\"batch\\"}}}","Canonicalize":true}',
            b'{"JobHCL":"variable \\"n\\" {}\\njob \\"x\\" {\\n priority = var.n\\n}","Variables":"n = 3"}',
        ),
        "node.drain": (b'{"DrainSpec":{"Deadline":1000000000},"Meta":{"a":"b"}}', b'{"DrainSpec":null,"MarkEligible":true}'),
        "node.eligibility": (b'{"Eligibility":"ineligible"}', b'{"Eligibility":"eligible"}'),
        "node_pool.store": (b'{"Name":"gpu","Meta":{"a":"b"}}',),
        "node_pool.update": (b'{"Name":"gpu"}',),
        "namespace.store": (b'{"Name":"dev","Description":"x"}', b'{"Name":"more"}'),
        "quota.store": (b'{"Name":"small","Limits":[{"Region":"global","RegionLimit":{"CPU":100}}]}',),
        "acl.policy.store": (b'{"Name":"reader","Rules":"namespace \\"default\\" { policy = \\"read\\" }"}',),
        "acl.token.create": (b'{"Name":"x","Type":"client","Policies":["reader"],"ExpirationTTL":"1h"}',),
        "acl.role.create": (b'{"Name":"staff","Policies":[{"Name":"reader"}]}',),
        "acl.rule.create": (b'{"AuthMethod":"sso","Selector":"","BindType":"role","BindName":"staff"}',),
        "variable.put": (b'{"Items":{"a":"b"}}',),
        "search.prefix": (b'{"Prefix":"s","Context":"all"}',),
        "search.fuzzy": (b'{"Text":"sho","Context":"all"}',),
        "operator.set_scheduler": (b'{"SchedulerAlgorithm":"spread"}',),
        "deployment.promote": (b'{"All":true}',),
    }  # fmt: skip


async def create_records(port: int, bootstrap: str) -> RequestMaterial:
    """Create the records and return their ids. `bootstrap`: the secret of the first token; "" if access control is off."""
    client, tokens = JsonClient(port, ""), [""]
    ids: dict[str, tuple[str, ...]] = {}
    introduction: dict[str, str] = {}
    if bootstrap:
        await client.send("PUT", "/v1/acl/bootstrap", {"BootstrapSecret": bootstrap})
        client.token = bootstrap
        rules = 'namespace "default" { policy = "read" } node { policy = "read" }'
        await client.send("PUT", f"/v1/acl/policy/{WEAK_NAME}", {"Name": WEAK_NAME, "Rules": rules})
        weak_token = await client.send(
            "PUT", "/v1/acl/token", {"Name": "weak", "Type": "client", "Policies": [WEAK_NAME]}
        )
        ids["accessor_id"] = (weak_token["AccessorID"],)
        tokens = [bootstrap, bootstrap, weak_token["SecretID"], "", an_id(99), "not-a-token", "a.b.c"]
        introduction_token = await client.send("PUT", "/v1/acl/identity/client-introduction-token", {})
        introduction = {"Authorization": f"Bearer {introduction_token['JWT']}"}
        role = await client.send("PUT", "/v1/acl/role", {"Name": "staff", "Policies": [{"Name": WEAK_NAME}]})
        ids["role_id"] = (role["ID"],)
    for name in ("dev", "more"):
        await client.send("PUT", "/v1/namespace", {"Name": name})
    await client.send("PUT", "/v1/node/pools", {"Name": "gpu"})
    await client.send(
        "PUT", "/v1/quota", {"Name": "small", "Limits": [{"Region": "global", "RegionLimit": {"CPU": 100}}]}
    )
    await client.send("PUT", "/v1/var/db", {"Items": {"password": ITEM}})
    node_id = an_id(77)
    node = build_fake_node(node_id, FakeMachine(name=NODE_NAME), SimulatedWorld(1).now_ns())
    await client.send("PUT", f"/v1/node/{node_id}/register", {"Node": node, "SecretID": NODE_SECRET}, **introduction)
    await client.send("PUT", f"/v1/node/{node_id}/heartbeat", None, **{"X-Cluster-Node-Secret": NODE_SECRET})
    for job in jobs():
        await client.send("PUT", "/v1/jobs", {"Job": job})
    allocations = await asyncio.to_thread(wait_until, client.all_placed, what="the jobs are placed")
    evaluations = await client.send("GET", "/v1/evaluations")
    deployments = await client.send("GET", "/v1/deployments")
    ids |= {
        "job_id": tuple(job.id for job in jobs()),
        "node_id": (node_id, node_id[:8]),
        "alloc_id": tuple(allocation["ID"] for allocation in allocations),
        "eval_id": tuple(evaluation["ID"] for evaluation in evaluations),
        "deployment_id": tuple(deployment["ID"] for deployment in deployments),
        "pool_name": ("gpu", "default", "all"),
        "namespace_name": ("default", "dev", "more"),
        "quota_name": ("small",),
        "service_name": ("shop-web",),
        "name": (WEAK_NAME, "sso", "staff"),
        "path": ("db", "a/b"),
        "tag": ("one", "golden"),
        "profile": ("goroutine", "heap"),
        "": (*TEXTS[1:12], an_id(1), an_id(2), "0000"),
    }
    return RequestMaterial(ids, tuple(tokens), samples())
