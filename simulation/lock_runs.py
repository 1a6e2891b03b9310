"""Runs that want locks, in the simulation: a client registers them, and never changes them.

It calls the operation in an api process, and not through the HTTP API, and it does not wait for the outcome: the process may be
killed at any time.
"""

import asyncio
from random import Random
from typing import Final

from msgspec.structs import replace

from simulation.client_records import ClientRecords
from simulation.cluster import JOB_SETTINGS
from wharf.cluster.operations.jobs.registration import JobRegistration, register_job
from wharf.cluster.server.server import Server
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, RestartPolicy
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.steps import Lock, LockPolicy, Need
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import SECOND

MEAN_PAUSE_S: Final = 1.2
MAX_RUNS: Final = 40
"""Runs of a seed, so that the last ones have ended before a seed is checked for a steady state."""
SLOTS_BY_KEY: Final = {"single": 1, "double": 2}
"""The locks, and how many allocations may hold each of them."""
POLICIES: Final = (
    *[LockPolicy.QUEUE] * 14, LockPolicy.REPLACE_WAITING, LockPolicy.REPLACE_RUNNING
)  # fmt: skip


def make_run(number: int, draw: Random) -> Job:
    """Return a run of one or two steps with locks."""
    first = _make_step("first", draw)
    second = _make_step("second", draw)
    if draw.random() < 0.5:
        second = replace(second, depends=(Need(on="first"),))
    return Job(
        id=f"locked-{number}", type=JobType.BATCH, datacenters=("*",), priority=50,
        task_groups=(first, second) if draw.random() < 0.6 else (first,),
    )  # fmt: skip


def _make_step(name: str, draw: Random) -> TaskGroup:
    key = draw.choice(list(SLOTS_BY_KEY))
    task = Task(
        name="task", driver="mock", resources=Resources(cpu=20, memory_mb=16),
        config={"run_for": draw.randint(1, 3) * SECOND, "exit_code": draw.choice([0, 0, 0, 1])},
    )  # fmt: skip
    return TaskGroup(
        name=name, count=1, tasks=(task,), array=GroupArray(size=draw.choice([1, 1, 2, 3])),
        lock=Lock(key=key, slots=SLOTS_BY_KEY[key], policy=draw.choice(POLICIES).value),
        restart_policy=RestartPolicy(attempts=0, interval=1_800 * SECOND, delay=SECOND, mode="fail"),
        reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
    )  # fmt: skip


class LockUser:
    """Registers runs, each in the api process of a random server."""

    def __init__(self, records: ClientRecords) -> None:
        self.name = "lock-user"
        self._records = records
        self._random = Random(f"{records.cluster.seed}/{self.name}")

    async def run(self) -> None:
        """Register runs, with pauses."""
        for number in range(MAX_RUNS):
            await asyncio.sleep(self._random.expovariate(1 / MEAN_PAUSE_S))
            job = make_run(number, self._random)
            api = self._random.choice(self._records.cluster.members).api
            if api.process is not None and api.is_alive and api.server is not None and api.server.replica.index:
                api.process.start(self._register(api.server, job), name=self.name)

    async def _register(self, server: Server, job: Job) -> None:
        text = f"register {job.id}"
        try:
            await server.writer.execute(
                lambda snapshot, context: register_job(snapshot, JobRegistration(job=job), context, JOB_SETTINGS)
            )
        except Refusal as refusal:
            text += f": {refusal.code}: {refusal.text}"
        self._records.timeline.add_event(f"{self.name} ({server.identity.name}) {text}", self.name, job.id)
