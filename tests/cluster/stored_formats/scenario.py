"""A small cluster with arrays, runs, flows and locks in every state, whose state the fixtures of stored formats have.

`write` stores it once for each cluster format. `test_stored_formats` reads it with the program of today.
"""

import datetime
from typing import Any, Final

import msgspec

from tests.builders import SECOND, a_batch_job, a_group, a_periodic_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryTransport
from tests.kit.virtual_time import pass_time, until
from wharf.cluster.state.tables import ALLOCATIONS, JOB_RESULTS, JOBS
from wharf.contract.client import NO_RETRIES, AsyncClient
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, RestartPolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.step_outputs import ReportedOutputs, list_output_names
from wharf.contract.model.jobs.steps import Flow, Gate, Lock, Need, Outputs
from wharf.contract.wire.nodes import messages
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode

NODES: Final = {
    "node-1": NodeCredentials("5f0c1d3a-0001-4000-8000-000000000001", "the secret of the first node"),
    "node-2": NodeCredentials("5f0c1d3a-0002-4000-8000-000000000002", "the secret of the second node"),
}
VERSION: Final = "1.2"
"""The text that each step leaves that declares one."""
WITHIN_S: Final = 120.0
FIRST_SLOT: Final = datetime.datetime(2025, 12, 30, 3, tzinfo=datetime.UTC)
LAST_SLOT: Final = datetime.datetime(2025, 12, 31, 3, tzinfo=datetime.UTC)


class OutputNode(FakeNode):
    """A fake node whose programs leave the text `VERSION` for each name that their step declares."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._names: dict[str, tuple[str, ...]] = {}

    def apply_assignment(self, assignment: messages.Assignment) -> None:
        job, assigned = assignment.job, assignment.allocation
        group = job.find_group(assigned.task_group) if job is not None else None
        self._names[assigned.id] = list_output_names(group)
        super().apply_assignment(assignment)

    def build_update(self, allocation_id: str) -> messages.AllocationUpdate:
        update = super().build_update(allocation_id)
        names = self._names.get(allocation_id, ())
        if not names or not update.client_status.is_terminal:
            return update
        return msgspec.structs.replace(update, outputs=ReportedOutputs(texts=dict.fromkeys(names, VERSION)))


def start_nodes(cluster: ACluster, server: OneServer) -> None:
    """Start the nodes of the scenario. They have the same identities each time."""
    for name, identity in NODES.items():
        world = cluster.world(name)
        client = AsyncClient(world, [InMemoryTransport(server.api)], retry_policy=NO_RETRIES)
        node = OutputNode(world, client, FakeMachine(name=name), identity=identity)
        cluster.start(node.run(), name=name)


def a_step(name: str, *needs: Need, runs_s: int = 1, exit_code: int = 0, size: int = 1, **fields: Any) -> TaskGroup:
    task = a_task(
        driver="mock", config={"run_for": f"{runs_s}s", "exit_code": exit_code}, resources=some_resources(20, 16)
    )
    policies: dict[str, Any] = {
        "restart_policy": RestartPolicy(attempts=0, interval=SECOND * 60, delay=SECOND, mode="fail"),
        "reschedule_policy": ReschedulePolicy(attempts=0, unlimited=False),
    }
    return a_group(name, task, depends=needs or None, array=GroupArray(size=size), **policies, **fields)


DAY_S: Final = 86_400
JOBS_OF_SCENARIO: Final[tuple[Job, ...]] = (
    # An array whose elements have succeeded, and one of which some elements run and others wait.
    a_batch_job("sweep", a_group("train", a_task(driver="mock", config={"run_for": "1s"}), array=GroupArray(size=5))),
    a_batch_job(
        "long-sweep",
        a_group(
            "train",
            a_task(driver="mock", config={"run_for": f"{DAY_S}s"}, resources=some_resources(20, 16)),
            array=GroupArray(items=("red", "green", "blue"), max_running=1),
        ),
    ),
    # A run with steps in each state, which waits at its gate.
    a_batch_job(
        "release",
        a_step("build", outputs=Outputs(text=("version",))),
        a_step("test", Need(on="build"), size=3),
        a_step("old-notes", Need(on="build"), condition='steps.build.version == "0.9"'),
        a_step("lint", exit_code=1, may_fail=True),
        a_step("report", Need(on="lint", when="failed")),
        a_step("ship", Need(on="test", at_least=2), Need(on="old-notes", when="ended", optional=True),
               gate=Gate(ask="Release to production?", timeout=100 * 3_600 * SECOND)),
        a_step("tidy", final=True),
        flow=Flow(final_timeout=60 * SECOND),
    ),
    # A run that failed, and whose failed step runs again in a second attempt.
    a_batch_job("again", a_step("first"), a_step("second", Need(on="first"), exit_code=1)),
    # A lock with a holder and a run that waits for it.
    a_batch_job("deploy-1", a_step("deploy", runs_s=DAY_S, lock=Lock(key="production"))),
    a_batch_job("deploy-2", a_step("deploy", lock=Lock(key="production"))),
    # A flow with a run, and another one in its queue.
    a_periodic_job("nightly", a_step("copy", runs_s=DAY_S), flow=Flow(overlap="queue")),
    # Jobs that need others: a deleted one, and one that has not ended.
    a_batch_job("import", a_step("load")),
)  # fmt: skip
AFTER_IMPORT: Final = a_batch_job("after-import", a_step("use"), depends=(Need(on="import"),))
AFTER_RELEASE: Final = a_batch_job("after-release", a_step("tell"), depends=(Need(on="release"),))
PATHS: Final = (
    *(
        f"/v1/job/{job_id}/run"
        for job_id in ("release", "again", "deploy-1", "deploy-2", "after-import", "after-release")
    ),
    *(f"/v1/job/nightly%2Fperiodic-{round(slot.timestamp())}/run" for slot in (FIRST_SLOT, LAST_SLOT)),
    *(f"/v1/job/{job_id}/arrays" for job_id in ("sweep", "long-sweep", "release", "again")),
    *(f"/v1/job/{job_id}/summary" for job_id in ("sweep", "release", "again", "nightly")),
    "/v1/job/release/outputs",
    "/v1/job/release",
    "/v1/runs",
    "/v1/flows",
    "/v1/jobs",
    "/v1/allocations",
)
"""What the API says about the scenario. None of the replies depends on the time."""


async def build_state(cluster: ACluster) -> OneServer:
    """Bring a new cluster into the state of the scenario. Return its server."""
    server = await cluster.a_server()
    start_nodes(cluster, server)
    jobs = server.client.jobs
    for job in JOBS_OF_SCENARIO:
        await jobs.register(job)
        await pass_time(0.1)
    await server.client.flows.backfill("nightly", FIRST_SLOT, LAST_SLOT + datetime.timedelta(hours=1))
    await wait_for_end(server, "sweep")
    await wait_for_end(server, "again")
    await server.client.flows.retry("again")
    await wait_for_end(server, "import")
    await jobs.deregister("import", purge=True)
    await until(lambda: server.replica.get(JOB_RESULTS, "default", "import"), what="the result", within_s=WITHIN_S)
    await jobs.register(AFTER_IMPORT)
    await jobs.register(AFTER_RELEASE)
    await wait_for_end(server, "after-import")
    await wait_for_end(server, "again")
    await pass_time(20.0)  # Until nothing happens any more.
    return server


async def wait_for_end(server: OneServer, job_id: str) -> None:
    def has_ended() -> bool:
        job = server.replica.get(JOBS, "default", job_id)
        return job is not None and job.status is JobStatus.DEAD

    await until(has_ended, what=f"the end of {job_id}", within_s=WITHIN_S)


def count_running(server: OneServer, job_id: str) -> int:
    """Return how many allocations of a job run."""
    return sum(
        each.job_id == job_id and each.client_status == "running" for each in server.replica.iter_all(ALLOCATIONS)
    )
