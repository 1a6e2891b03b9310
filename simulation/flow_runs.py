"""A client of flows and of jobs that need other jobs: it launches, backfills, cancels, retries and purges runs.

The flows never change, so that the rules about their runs need no history of `Flow.Overlap`.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from random import Random
from typing import Any, Final

from simulation.client_records import ClientRecords
from simulation.flow_invariants import SLOT_KEY
from simulation.runs import MODE_KEY, MODES, make_steps
from simulation.user import SimulatedUser, UserAction
from wharf.contract.client import Unreachable
from wharf.contract.model.jobs.job import Job, JobType, Parameterized, Periodic
from wharf.contract.model.jobs.steps import Flow, FlowOverlap, Need, NeedWhen
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import SECOND, to_datetime

MEAN_PAUSE_S: Final = 1.2
MAX_CHAINED_JOBS: Final = 16
"""Jobs of a seed that need other ones. They limit what a seed costs."""
MAX_LAUNCHES: Final = 16
"""Requests of a seed that launch runs of flows, so that the queues are empty before a seed is checked for a steady state."""
MAX_STEPS: Final = 3
MAX_BACKFILLED_SLOTS: Final = 3
QUEUED: Final = "flow-queued"
SKIPPED: Final = "flow-skipped"
REPLACED: Final = "flow-replaced"
FLOW_IDS: Final = (QUEUED, SKIPPED, REPLACED)
SCHEDULES: Final = {QUEUED: ("0 * * * *", 3_600), SKIPPED: ("*/2 * * * *", 120)}
"""The schedules of the flows that are periodic, with the seconds between two slots. The other one is parameterized."""
OVERLAPS: Final = {QUEUED: FlowOverlap.QUEUE, SKIPPED: FlowOverlap.SKIP, REPLACED: FlowOverlap.REPLACE}
STOP_TRIES: Final = 30


def make_flow_job(seed: int, flow_id: str) -> Job:
    """Return the specification of a flow. It depends on the seed only."""
    draw = Random(f"{seed}/{flow_id}")
    spec, slot_s = SCHEDULES.get(flow_id, ("", 0))
    return Job(
        id=flow_id, type=JobType.BATCH, datacenters=("*",), priority=50,
        meta={MODE_KEY: draw.choice(MODES), SLOT_KEY: str(slot_s)},
        task_groups=make_steps(draw, max_steps=MAX_STEPS, has_gates=False),
        flow=Flow(overlap=OVERLAPS[flow_id].value, final_timeout=10 * SECOND),
        periodic=Periodic(specs=(spec,)) if spec else None,
        parameterized_job=None if spec else Parameterized(),
    )  # fmt: skip


class FlowUser(SimulatedUser):
    """A client that uses flows, and jobs that need other jobs."""

    def __init__(self, records: ClientRecords, name: str) -> None:
        super().__init__(records, name)
        self._chained: list[str] = []
        """The IDs of the jobs that were submitted, oldest first. Later ones need some of them."""
        self._runs: list[str] = []
        """The IDs of known runs of flows."""
        self._launch_count = 0

    @property
    def weighted_actions(self) -> Sequence[tuple[int, UserAction]]:
        return (
            (3, self._register_flow), (4, self._launch), (3, self._backfill), (5, self._register_chain),
            (1, self._cancel_run), (3, self._retry_run), (2, self._purge_run), (2, self._purge_chained),
        )  # fmt: skip

    async def run(self) -> None:
        """Submit the flows, and perform random actions without end, with pauses."""
        for flow_id in FLOW_IDS:
            await self._submit(make_flow_job(self._cluster.seed, flow_id))
        actions = self.weighted_actions
        while True:
            await self._pause()
            _, action = self._random.choices(actions, [weight for weight, _ in actions])[0]
            await action()

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.expovariate(1 / MEAN_PAUSE_S))
        self._choose_member()

    # -- submissions -----------------------------------------------------------------------------------------------

    async def _submit(self, job: Job) -> bool:
        """Submit a job. Return whether a server accepted it."""
        reply = await self._try(f"submit {job.id}", self._client.jobs.register(job), job.id)
        return reply is not None

    async def _register_flow(self) -> None:
        """Submit a flow again: a restore may have undone it."""
        await self._submit(make_flow_job(self._cluster.seed, self._random.choice(FLOW_IDS)))

    async def _register_chain(self) -> None:
        """Submit up to three jobs, one after the other, of which most need earlier ones."""
        for _ in range(self._random.randint(1, 3)):
            if len(self._chained) < MAX_CHAINED_JOBS:
                await self._register_chained()

    async def _register_chained(self) -> None:
        """Submit a job that mostly needs one or two earlier ones. Needs of unknown jobs are refused."""
        number = len(self._chained)
        draw = self._random
        needed = draw.sample(self._chained[-4:], min(number, draw.choice([0, 1, 1, 1, 2])))
        needs = tuple(
            Need(
                on=each,
                when=draw.choice([NeedWhen.SUCCEEDED, NeedWhen.FAILED, NeedWhen.ENDED, NeedWhen.ANY]).value,
                optional=draw.random() < 0.4,
            )
            for each in needed
        )
        job = Job(
            id=f"chained-{number}", type=JobType.BATCH, datacenters=("*",), priority=50, depends=needs or None,
            meta={MODE_KEY: draw.choice(MODES)}, flow=Flow(final_timeout=10 * SECOND),
            task_groups=make_steps(draw, max_steps=MAX_STEPS, has_gates=False),
        )  # fmt: skip
        if await self._submit(job):
            self._chained.append(job.id)

    # -- launches --------------------------------------------------------------------------------------------------

    async def _launch(self) -> None:
        """Dispatch a flow, or launch it by hand."""
        if self._launch_count >= MAX_LAUNCHES:
            return
        self._launch_count += 1
        flow_id = self._random.choice(FLOW_IDS)
        if flow_id in SCHEDULES:
            await self._try(f"launch {flow_id}", self._client.jobs.force_periodic(flow_id), flow_id)
            return
        reply = await self._try(f"dispatch {flow_id}", self._client.jobs.dispatch(flow_id), flow_id)
        if reply is not None:
            self._records.dispatched[reply.dispatched_job_id] = reply.index
            self._runs.append(reply.dispatched_job_id)

    async def _backfill(self) -> None:
        """Launch the runs of some past slots of a schedule. Half of these requests are sent twice."""
        if self._launch_count >= MAX_LAUNCHES:
            return
        self._launch_count += 1
        flow_id = self._random.choice([*SCHEDULES])
        slot_s = SCHEDULES[flow_id][1]
        end_ns = self.process.world.now_ns() - self._random.randint(0, 2 * slot_s) * SECOND
        begin_ns = end_ns - self._random.randint(1, MAX_BACKFILLED_SLOTS) * slot_s * SECOND
        for _ in range(self._random.choice([1, 2])):
            call = self._client.flows.backfill(flow_id, to_datetime(begin_ns), to_datetime(end_ns))
            reply = await self._try(f"backfill {flow_id}", call, flow_id)
            if reply is not None:
                self._runs += [slot.job_id for slot in reply.slots if slot.job_id not in self._runs]
            self._choose_member()

    # -- runs ------------------------------------------------------------------------------------------------------

    def _choose_run(self) -> str | None:
        known = [*self._runs, *self._chained]
        return self._random.choice(known) if known else None

    async def _cancel_run(self) -> None:
        if run_id := self._choose_run():
            await self._try(f"cancel {run_id}", self._client.flows.cancel(run_id), run_id)

    async def _retry_run(self) -> None:
        """Run the failed steps of a run again, or its first step and what follows it."""
        if run_id := self._choose_run():
            steps = ("step-0",) if self._random.random() < 0.4 else ()
            await self._try(
                f"retry {' '.join(steps)} of {run_id}", self._client.flows.retry(run_id, steps=steps), run_id
            )

    async def _purge_run(self) -> None:
        if self._runs:
            await self._purge_job(self._random.choice(self._runs))

    async def _purge_chained(self) -> None:
        if self._chained:
            await self._purge_job(self._random.choice(self._chained))

    async def _purge_job(self, job_id: str) -> None:
        await self._try(f"purge {job_id}", self._client.jobs.deregister(job_id, purge=True), job_id)

    # -- at the end ------------------------------------------------------------------------------------------------

    async def stop_flows(self) -> None:
        """Stop all flows, so that their schedules launch no further runs."""
        for flow_id in FLOW_IDS:
            for _ in range(STOP_TRIES):
                self._choose_member()
                try:
                    await self._client.jobs.deregister(flow_id)
                    break
                except Unreachable as error:
                    self._log(f"stop {flow_id}: {error}", flow_id)
                except Refusal as refusal:
                    self._log(f"stop {flow_id}: {refusal.code}: {refusal.text}", flow_id)
                    if refusal.code is RefusalCode.NOT_FOUND:
                        break
                await self._pause()

    async def _try(self, text: str, call: Awaitable[Any], *subjects: str) -> Any:
        """Return the reply to a call, or `None` if it failed. Log the outcome."""
        try:
            reply = await call
        except Unreachable as error:
            self._log(f"{text}: {error}", *subjects)
            return None
        except Refusal as refusal:
            self._log(f"{text}: {refusal.code}: {refusal.text}", *subjects)
            return None
        self._log(f"{text}: {getattr(reply, 'index', 0)}", *subjects)
        return reply
