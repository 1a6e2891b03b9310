"""A page of each kind, of a small cluster in virtual time: each run gives the same pages.

Golden files, the strict reader and a real browser check these pages. They contain what large pages contain, once each: a job that
waits, one that failed, a rollout that waits for a person, a drain, a node that is down, a quota that is used up.
"""

import functools
import json
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_task, some_resources
from tests.cluster.api.limited_server import ADDRESS, LimitedServer
from tests.cluster.api.test_node_channels import NODE, RUNS, SECRET, OpenNode
from tests.kit.cluster import ACluster, ANode, OneServer
from tests.kit.file_agent import give_files
from tests.kit.requests import commit
from tests.kit.state import a_node, an_allocation
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from tests.web.browsing import CONFIRMED, Browser, ShownPage, a_browser, enable_access
from tests.web.test_logs import LogNode
from tests.web.test_nodes_and_files import FileNode
from wharf.agent.snapshots.schedule import build_snapshot_name
from wharf.cluster.engines.snapshot_file import SNAPSHOT_MAGIC
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    EVALUATIONS_BY_STATUS,
    HOST_VOLUMES,
    JOB_VERSIONS,
    JOBS,
    NODE_POOLS,
    NODES,
    SERVICES,
    STEP_OUTPUTS,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.logs import pack_log_tails
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, RestartPolicy, UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, Parameterized, Periodic
from wharf.contract.model.jobs.step_outputs import ElementOutputs, StepOutputs
from wharf.contract.model.jobs.steps import Flow, Gate, Need, Outputs
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.nodes.node import DriverInfo, NodeHostVolume, NodeStatus
from wharf.contract.model.nodes.resources import DeviceInstance, NodeCpu, NodeDevice, NodeMemory, NodeResources
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.times import HOUR, SECOND
from wharf.contract.model.volumes import HostVolume, HostVolumeState
from wharf.contract.wire.nodes import channel
from wharf.contract.wire.nodes.messages import DrainSpec
from wharf.node.channel.endpoint import ChannelReply

LAST_WORDS: Final = b"opening /data/orders.db\nTraceback: no space left on device\n"
PRINTED: Final = b"".join(b"\x1b[3%dmrequest\x1b[0m %d <b>\n" % (n % 8, n) for n in range(1, 13))
VOLUME_ID: Final = "7d1f0c44-0000-0000-0000-000000000021"
READER_RULES: Final = 'namespace "default" {\n  policy = "read"\n}\n'
UPDATE: Final = UpdatePolicy(max_parallel=1, min_healthy_time=5 * SECOND)
JOB_FILE: Final = 'job "new" {\n  group "web" {\n    task "server" {\n      driver = "mock"\n    }\n  }\n}\n'


REFUSED_VOLUME: Final = {
    "kind": "register",
    "name": "not valid!",
    "namespace": "default",
    "access": "single-node-writer",
    "node": "build-1",
    "path": "srv/data",
}


class Visit(NamedTuple):
    """How a person gets to a page. Names in braces are IDs of the cluster."""

    path: str
    form: Mapping[str, str] | None = None
    """What the person sends; `None` if the page is only opened."""
    person: str = "operator"


VISITS: Final[Mapping[str, Visit]] = {
    "overview": Visit("/ui"),
    "jobs": Visit("/ui/jobs"),
    "jobs-of-one-page": Visit("/ui/jobs?rows=50&filter=Type+%3D%3D+%22batch%22"),
    "jobs-refused-filter": Visit("/ui/jobs?filter=Colour+%3D%3D+%22red%22"),
    "job-in-rollout": Visit("/ui/jobs/web"),
    "job-waiting": Visit("/ui/jobs/huge"),
    "job-failed": Visit("/ui/jobs/broken"),
    "job-failed-of-reader": Visit("/ui/jobs/broken", person="reader"),
    "job-stopped": Visit("/ui/jobs/old"),
    "job-of-dispatches": Visit("/ui/jobs/encode"),
    "job-array": Visit("/ui/jobs/sweep"),
    "actions-of-array": Visit("/ui/jobs/sweep/actions"),
    "job-missing": Visit("/ui/jobs/missing"),
    "run-at-gate": Visit("/ui/jobs/release"),
    "run-failed": Visit("/ui/jobs/import"),
    "run-retry": Visit("/ui/jobs/import/retry"),
    "flow": Visit("/ui/jobs/report"),
    "runs-of-flow": Visit("/ui/jobs/report/runs"),
    "runs": Visit("/ui/flows"),
    "runs-at-gates": Visit("/ui/flows?state=gated&sort=changed"),
    "runs-of-none": Visit("/ui/flows?state=skipped&filter=release"),
    "step": Visit("/ui/jobs/release/steps/build"),
    "step-at-gate": Visit("/ui/jobs/release/steps/ship"),
    "step-of-array": Visit("/ui/jobs/release/steps/test"),
    "step-missing": Visit("/ui/jobs/release/steps/paint"),
    "timeline": Visit("/ui/jobs/web/timeline"),
    "versions": Visit("/ui/jobs/web/versions"),
    "revert": Visit("/ui/jobs/web/versions/0/revert"),
    "actions": Visit("/ui/jobs/shop/actions"),
    "actions-of-dispatches": Visit("/ui/jobs/encode/actions"),
    "actions-of-launches": Visit("/ui/jobs/nightly/actions"),
    "actions-stopped": Visit("/ui/jobs/old/actions"),
    "logs": Visit("/ui/jobs/talk/logs"),
    "logs-of-reader": Visit("/ui/jobs/talk/logs", person="reader"),
    "logs-search": Visit("/ui/jobs/talk/logs?q=request+1"),
    "logs-retained": Visit("/ui/allocations/{failed}/logs"),
    "allocation": Visit(f"/ui/allocations/{RUNS}"),
    "allocation-failed": Visit("/ui/allocations/{failed}"),
    "files": Visit(f"/ui/allocations/{RUNS}/files?path=/local"),
    "file": Visit(f"/ui/allocations/{RUNS}/files?path=/local/evil.html"),
    "run": Visit("/ui/run"),
    "run-mistakes": Visit("/ui/run", {"source": JOB_FILE.replace("driver", "drivr")}),
    "run-plan": Visit("/ui/run", {"source": JOB_FILE}),
    "nodes": Visit("/ui/nodes"),
    "node": Visit(f"/ui/nodes/{NODE}"),
    "drain-question": Visit(f"/ui/nodes/{NODE}/drain", {"deadline": "1h", "note": "new disks"}),
    "drain-refused": Visit(f"/ui/nodes/{NODE}/drain", {"deadline": "soon", "note": "new disks"}),
    "node-drained": Visit("/ui/nodes/{drained}"),
    "node-down": Visit("/ui/nodes/{down}"),
    "fleet": Visit("/ui/fleet"),
    "fleet-by-use": Visit("/ui/fleet?by=use"),
    "queue": Visit("/ui/queue"),
    "search": Visit("/ui/search?q=e"),
    "search-nothing": Visit("/ui/search?q=nothing-has-this"),
    "servers": Visit("/ui/servers"),
    "namespaces": Visit("/ui/namespaces"),
    "namespace": Visit("/ui/namespaces/team"),
    "quotas": Visit("/ui/quotas"),
    "quota": Visit("/ui/quotas/team"),
    "pools": Visit("/ui/pools"),
    "pool": Visit("/ui/pools/default"),
    "services": Visit("/ui/services"),
    "service": Visit("/ui/services/shop-http"),
    "variables": Visit("/ui/variables"),
    "variable": Visit("/ui/variables/app%2Fdatabase"),
    "variable-values": Visit("/ui/variables/app%2Fdatabase/values?namespace=default", {}),
    "volumes": Visit("/ui/volumes"),
    "volume": Visit(f"/ui/volumes/{VOLUME_ID}"),
    "activity": Visit("/ui/activity?kind=nodes"),
    "access": Visit("/ui/access"),
    "access-of-reader": Visit("/ui/access", person="reader"),
    "refused-to-reader": Visit("/ui/nodes", person="reader"),
    "tokens": Visit("/ui/access/tokens"),
    "policies": Visit("/ui/access/policies"),
    "policy": Visit("/ui/access/policies/reader"),
    "sign-in": Visit("/ui/sign-in?next=/ui/jobs", person="nobody"),
    "sign-in-refused": Visit("/ui/sign-in", {"token": "wrong", "next": "/ui/jobs"}, person="nobody"),
    "no-such-page": Visit("/ui/nothing"),
    "nodes-by-use": Visit("/ui/nodes?sort=use"),
    "pool-refused": Visit(
        "/ui/pools", {"name": "not valid!", "description": "x", "algorithm": "spread", "oversubscription": "no"}
    ),
    "namespace-refused": Visit("/ui/namespaces/team", {"description": "x", "quota": "gone", "weight": "0"}),
    "quota-refused": Visit("/ui/quotas", {"name": "not valid!", "region": "", "cpu": "5", "memory": "0", "count": "0"}),
    "pool-of-team": Visit("/ui/pools/team"),
    "pool-question": Visit("/ui/pools/team/delete", {}),
    "volume-refused": Visit("/ui/volumes", REFUSED_VOLUME),
    "volume-question": Visit(f"/ui/volumes/{VOLUME_ID}/delete", {}),
    "service-question": Visit("/ui/services/shop-http/s1/deregister", {}),
    "audit": Visit("/ui/activity/audit?q=app/database"),
    "audit-search": Visit("/ui/activity/audit?q=sign&failed=yes"),
}
"""All pages of the cluster with work, by the name of their golden file."""
EMPTY_VISITS: Final[Mapping[str, Visit]] = {
    f"empty-{name}": Visit(f"/ui/{path}") for name, path in {"overview": "", "fleet": "fleet", "queue": "queue"}.items()
} | {
    f"empty-{name}": Visit(f"/ui/{name}")
    for name in ("jobs", "flows", "nodes", "services", "variables", "volumes", "quotas", "activity", "access")
}
"""Pages of a cluster without nodes and jobs, and without access control."""
LIMIT_VISITS: Final[Mapping[str, Visit]] = {
    "limits": Visit("/ui/limits"),
    "limits-of-caller": Visit(f"/ui/limits/callers/{quote(ADDRESS, safe='')}"),
    "limits-of-organizations": Visit("/ui/limits/organization"),
    "limits-cost": Visit(f"/ui/limits/cost?caller={quote(ADDRESS)}&path=/v1/jobs"),
}
"""Pages of a server with rate limits, which has refused requests and has a grant and a ban."""
ALL_NAMES: Final = (*VISITS, "node-draining", *EMPTY_VISITS, "empty-limits", *LIMIT_VISITS)


class FixedToken:
    """Gives a client the same token for each request."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def get_token(self) -> str:
        return self._secret

    def on_rejected(self, token: str) -> None:
        raise AssertionError(f"the token {token[:8]} is not valid")


class TalkingNode(FileNode):
    """A node whose task has files and has printed lines."""

    async def handle_request(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        if request.verb in ("fs_logs", "fs_search"):
            return await LogNode({"stdout": [PRINTED], "stderr": [b"disk is slow\n"]}).handle_request(request, inputs)
        return await super().handle_request(request, inputs)


@functools.cache
def show_all_pages() -> Mapping[str, ShownPage]:
    """Return all pages, by their names."""
    pages: dict[str, ShownPage] = {}

    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            pages.update(await show_pages_of_work(cluster))
        async with ACluster() as cluster:
            browser = a_browser(await cluster.a_server("m1"))
            pages.update({name: await browser.get(visit.path) for name, visit in EMPTY_VISITS.items()})
            pages["empty-limits"] = await browser.get("/ui/limits")
        async with ACluster() as cluster:
            pages.update(await show_pages_of_limits(cluster))

    look()
    return pages


async def show_pages_of_work(cluster: ACluster) -> Mapping[str, ShownPage]:
    """Fill a cluster with work, and return its pages."""
    server = await cluster.a_server("m1")
    nodes = await cluster.ready_nodes(server, 4)  # While access control is off, nodes need no introduction.
    secret = await enable_access(server)
    with tempfile.TemporaryDirectory() as folder:
        give_files(server, Path(folder))
        add_snapshots(server, Path(folder))
        return await visit_pages(cluster, server, nodes, secret)


async def visit_pages(cluster: ACluster, server: OneServer, nodes: list[ANode], secret: str) -> Mapping[str, ShownPage]:
    """Fill the cluster, and return what people see when they make their visits."""
    server.client = server.client.with_token_source(FixedToken(secret))
    ids = await fill_cluster(server, nodes)
    talking = OpenNode(cluster, server, SECRET, handler=TalkingNode())  # type: ignore[arg-type]
    await talking.open()
    people = {name: a_browser(server) for name in ("operator", "reader", "nobody")}
    await sign_in(people["operator"], secret)
    await sign_in(people["reader"], await create_reader(server))
    pages = {}
    for name, visit in VISITS.items():
        path = visit.path.format(**ids)
        browser = people[visit.person]
        pages[name] = await (browser.get(path) if visit.form is None else browser.post(path, visit.form))
    # A drain is complete after some seconds, so its page is opened at once.
    await server.client.nodes.drain(ids["second"], DrainSpec(deadline=HOUR), meta={"message": "new kernel"})
    pages["node-draining"] = await people["operator"].get(f"/ui/nodes/{ids['second']}")
    await talking.close()
    return pages


async def show_pages_of_limits(cluster: ACluster) -> dict[str, ShownPage]:
    """Refuse requests of an address, grant it more, ban another one, and return the pages of the limits."""
    server = await cluster.a_server("m1")
    with tempfile.TemporaryDirectory() as folder:
        limited, browser = LimitedServer(server, Path(folder)), a_browser(server)
        await limited.send(times=5)
        fields = {"duration": "2h", "reason": "an import"}
        await browser.post("/ui/limits/grants", {"caller": ADDRESS, "bucket": "core", "amount": "2", **fields})
        await browser.post(
            "/ui/limits/bans", {"subject": "address:192.0.2.9", "duration": "1h", "reason": "a flood", **CONFIRMED}
        )
        browser.cookies.clear()  # The notice of the last form.
        pages = {name: await browser.get(visit.path) for name, visit in LIMIT_VISITS.items()}
    for page in pages.values():
        page.text = page.text.replace(folder, "/etc/wharf")
    return pages


def add_snapshots(server: OneServer, folder: Path) -> None:
    """Add two files that begin as snapshots do, of which the newest is three hours old: the next one is late."""
    snapshots = folder / "snapshots"
    snapshots.mkdir()
    for age in (3 * HOUR, 4 * HOUR):
        name = build_snapshot_name(server.world.now_ns() - age)
        (snapshots / name).write_bytes(SNAPSHOT_MAGIC + bytes(50_000))


async def sign_in(browser: Browser, secret: str) -> None:
    assert (await browser.post("/ui/sign-in", {"token": secret, "next": "/ui"})).status == 303


async def create_reader(server: OneServer) -> str:
    """Return the secret of a token that may read the default namespace."""
    (management,) = [await server.client.acl.tokens.read_own()]
    headers = {"x-cluster-token": management.value.secret_id}
    browser = a_browser(server)
    policy = {"Name": "reader", "Description": "Reads jobs of the default namespace", "Rules": READER_RULES}
    await browser.send("PUT", "/v1/acl/policy/reader", headers=headers, body=json.dumps(policy).encode())
    token = {"Name": "ann", "Type": "client", "Policies": ["reader", "gone"]}
    created = await browser.send("PUT", "/v1/acl/token", headers=headers, body=json.dumps(token).encode())
    return str(json.loads(created.text)["SecretID"])


async def fill_cluster(server: OneServer, nodes: list[ANode]) -> dict[str, str]:
    """Start jobs, drain a node, end one, and wait until all are in their state. Returns IDs by the names of `VISITS`."""
    client = server.client
    await client.quotas.store(
        Quota(
            name="team",
            description="What the team may use",
            limits=(QuotaLimit(region="global", region_limit=RegionLimit(cpu=1_000, count=1)),),
        )
    )
    await client.namespaces.store(Namespace(name="team", description="The jobs of the team", quota="team", weight=2))
    await client.variables.put("app/database", {"user": "shop", "password": "a secret value"})
    for job in list_jobs():
        await register(server, job)
    await until(lambda: count_allocations(server, "broken", ClientStatus.FAILED), what="a job has failed")
    await until(lambda: count_allocations(server, "sweep", ClientStatus.FAILED) == 2, what="two elements have failed")
    await until(lambda: count_allocations(server, "pinned", ClientStatus.RUNNING), what="the pinned job runs")
    await until(lambda: count_allocations(server, "shop", ClientStatus.RUNNING) == 2, what="the shop runs")
    await pass_time(60)  # Rollouts of the first versions are complete.
    await client.jobs.dispatch("encode", meta={"input": "a.mov"})
    for run in (a_release(), a_failed_import(), a_flow()):
        await register(server, run)
    for _ in range(2):
        await client.jobs.dispatch("report")
        await pass_time(1)
    await register(server, a_web_job("2", "web"))
    await client.jobs.deregister("old")
    await client.nodes.drain(nodes[2].id, DrainSpec(deadline=HOUR), meta={"message": "new disks"})
    await nodes[3].die()
    await nodes[3].wait_for_status("down", within_s=600)
    failed = find_allocations(server, "broken", ClientStatus.FAILED)[0]
    retained = pack_log_tails({"server": {"stdout": LAST_WORDS}})
    await commit(server, ALLOCATIONS.build_put(replace(failed, log_tails=retained)))
    element = max(find_allocations(server, "sweep", ClientStatus.FAILED), key=lambda each: each.create_index)
    await commit(
        server, ALLOCATIONS.build_put(replace(element, log_tails=pack_log_tails({"main": {"stdout": LAST_WORDS}})))
    )
    await commit_talking_node(server)
    await commit_belongings(server)
    await commit_outputs(server)
    await until(lambda: is_waiting(server, "huge") and is_waiting(server, "second", "team"), what="two jobs wait")
    await pass_time(120)
    return {"failed": failed.id, "second": nodes[1].id, "drained": nodes[2].id, "down": nodes[3].id}


async def commit_outputs(server: OneServer) -> None:
    """Store the texts that steps of the run `release` left, because the nodes of this cluster run no program."""
    texts = {
        "version": "1.2",
        "notes": "faster\nsmaller: <b>half</b> of the files are gone, and the other half begins in a moment of the same day\n",
    }
    problem = 'the line 7 of the outputs has no "="'
    build = ElementOutputs(index=0, texts=texts, problem=problem)
    scores = tuple(ElementOutputs(index=index, texts={"score": f"{index * 7}"}) for index in range(8))
    await commit(
        server,
        *(
            STEP_OUTPUTS.build_put(
                StepOutputs(
                    namespace="default",
                    job_id="release",
                    attempt=1,
                    group=group,
                    elements=elements,
                    create_index=WRITE_INDEX,
                )
            )
            for group, elements in (("build", (build,)), ("test", scores))
        ),
    )


def list_jobs() -> tuple[Job, ...]:
    """Return the jobs in the order in which they are registered."""
    lasting = {"run_for": "24h"}
    failing = a_group(
        "db",
        a_task("server", driver="mock", config={"run_for": "1s", "exit_code": 1}),
        restart_policy=RestartPolicy(attempts=0, mode="fail"),
        reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
    )
    elements = tuple(
        a_group(
            name,
            a_task("main", driver="mock", config={"run_for": "1s", "exit_code": exit_code}),
            array=GroupArray(size=size),
            restart_policy=RestartPolicy(attempts=0, mode="fail"),
            reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
        )
        for name, size, exit_code in (("train", 6, 0), ("check", 2, 3))
    )
    pinned = a_task("server", driver="mock", config=lasting)
    giant = a_task("server", driver="mock", config=lasting, resources=some_resources(memory_mb=900_000))
    return (
        a_web_job("1", "shop"),
        a_web_job("1", "web"),
        a_web_job("1", "old"),
        a_job("broken", failing),
        a_job("sweep", *elements, type="batch"),
        a_job("pinned", a_group("web", pinned, constraints=(a_constraint("${node.unique.name}", "node-3"),))),
        a_job("huge", a_group("web", giant, count=2)),
        # On a node that stays, so that the quota is not free for the second one.
        a_job(
            "first",
            a_group("web", pinned, constraints=(a_constraint("${node.unique.name}", "node-1"),)),
            namespace="team",
        ),
        a_job("second", a_group("web", pinned), namespace="team"),
        a_job(
            "encode",
            a_group("web", a_task("server", driver="mock", config={"run_for": "1s"})),
            type="batch",
            parameterized_job=Parameterized(meta_required=("input",), meta_optional=("profile",)),
        ),
        a_job("nightly", a_group("web", pinned), type="batch", periodic=Periodic(specs=("0 3 * * *",))),
    )


def a_release() -> Job:
    """Return a run that waits at a gate, with an array and a step that may fail."""
    brief = {"run_for": "2s"}
    return a_job(
        "release",
        a_step("build", brief, outputs=Outputs(text=("version", "notes", "size"), keep=("data/app.txt",))),
        a_step("lint", {**brief, "exit_code": 1}, may_fail=True),
        a_step("test", brief, "build", array=GroupArray(size=8, max_running=4), outputs=Outputs(text=("score",))),
        a_step("alert", brief, Need(on="test", when="failed")),
        a_step("ship", brief, "test", Need(on="lint", when="ended"), gate=Gate(ask="Release to production?")),
        type="batch",
    )


def a_failed_import() -> Job:
    """Return a run whose second step fails."""
    brief = {"run_for": "2s"}
    steps = (a_step("fetch", brief), a_step("load", {**brief, "exit_code": 3}, "fetch"), a_step("index", brief, "load"))
    return a_job("import", *steps, type="batch")


def a_flow() -> Job:
    """Return a flow whose runs wait for each other."""
    group = a_group("build", a_task("server", driver="mock", config={"run_for": "24h"}))
    return a_job("report", group, type="batch", parameterized_job=Parameterized(), flow=Flow(overlap="queue"))


def a_step(name: str, config: dict[str, Any], *needs: str | Need, **fields: Any) -> TaskGroup:
    """Return a group of a run."""
    depends = tuple(each if isinstance(each, Need) else Need(on=each) for each in needs) or None
    return a_group(
        name,
        a_task("main", driver="mock", config=config),
        depends=depends,
        restart_policy=RestartPolicy(attempts=0, mode="fail"),
        reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
        **fields,
    )


def a_web_job(value: str, name: str) -> Job:
    """Return a service with a rollout. A version of `web` waits for its promotion."""
    task = a_task("server", driver="mock", config={"run_for": "24h"}, env={"VERSION": value})
    update = replace(UPDATE, canary=1) if name == "web" else UPDATE
    return a_job(name, a_group("web", task, count=2, update=update))


async def register(server: OneServer, job: Job) -> None:
    await server.client.jobs.register(json.loads(msgspec.json.encode(job)))


async def commit_talking_node(server: OneServer) -> None:
    """Add a node with devices and volumes, and an allocation that has files and logs."""
    gpu = NodeDevice(
        vendor="acme",
        type="gpu",
        name="a1",
        instances=(DeviceInstance(id="0", healthy=True), DeviceInstance(id="1", healthy=False)),
    )
    node = a_node(
        NODE,
        name="build-1",
        status=NodeStatus.READY,
        node_pool="default",
        datacenter="dc1",
        node_class="large",
        http_addr="192.0.2.7:4646",
        secret_digest=hash_secret(SECRET),
        node_resources=NodeResources(cpu=NodeCpu(cpu_shares=110), memory=NodeMemory(memory_mb=100), devices=(gpu,)),
        drivers={
            "docker": DriverInfo(detected=True, healthy=True),
            "exec": DriverInfo(detected=True, health_description="cgroups are missing"),
        },
        host_volumes={"data": NodeHostVolume(name="data", path="/srv/data", read_only=True)},
        create_index=WRITE_INDEX,
    )
    job = a_job("talk", a_group("web", a_task("server")), create_index=WRITE_INDEX)
    index = await commit(server, NODES.build_put(node), JOBS.build_put(job), JOB_VERSIONS.build_put(job))
    allocation = an_allocation(
        replace(job, create_index=index),
        RUNS,
        node_id=NODE,
        node_name="build-1",
        client_status=ClientStatus.RUNNING,
        task_states={"server": TaskState(state=TaskStatus.RUNNING)},
    )
    await commit(server, ALLOCATIONS.build_put(allocation))


async def commit_belongings(server: OneServer) -> None:
    """Add an instance of a service, a host volume and a node pool."""
    service = ServiceRegistration(
        id="s1", service_name="shop-http", namespace="default", node_id=NODE, job_id="talk", alloc_id=RUNS,
        tags=("green", "v2"), address="192.0.2.7", port=8080,
    )  # fmt: skip
    volume = HostVolume(
        id=VOLUME_ID, name="orders", node_id=NODE, node_pool="default", host_path="/srv/orders",
        capacity_bytes=5 << 30, state=HostVolumeState.READY, create_index=WRITE_INDEX,
    )  # fmt: skip
    pool = NodePool(name="team", description="Nodes of the team", create_index=WRITE_INDEX)
    await commit(server, SERVICES.build_put(service), HOST_VOLUMES.build_put(volume), NODE_POOLS.build_put(pool))


def find_allocations(server: OneServer, job_id: str, status: ClientStatus) -> list[Allocation]:
    found = server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", job_id)
    return [each for each in found if each.client_status is status]


def count_allocations(server: OneServer, job_id: str, status: ClientStatus) -> int:
    return len(find_allocations(server, job_id, status))


def is_waiting(server: OneServer, job_id: str, namespace: str = "default") -> bool:
    blocked = server.replica.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
    return any((each.job_id, each.namespace) == (job_id, namespace) for each in blocked)


UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def normalize(html: str) -> str:
    """Return a page without what each change of the code changes: IDs, hashes of files, log indexes, and the version."""
    names: dict[str, str] = {}
    for found in UUID.findall(html):
        names.setdefault(found, f"id-{len(names) + 1}")
    for found, name in names.items():
        html = html.replace(found, name).replace(found[:8], name)
    html = re.sub(r' data-index="\d+"', ' data-index="INDEX"', html)
    return re.sub(r"/ui/static/[0-9a-f]+/", "/ui/static/HASH/", html)
