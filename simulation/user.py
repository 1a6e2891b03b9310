"""One client of the cluster: somebody who registers, changes, stops and purges jobs, dispatches, reads in every way.

Every call goes through the real client. What was asked and told goes into the history, for the checker of histories,
and to the judge of reads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from simulation.cluster import ServerProcess, SimulatedServer
from simulation.history import CallHistory
from simulation.http_transport import SimulatedTransport
from simulation.jobs import SimulatedJob, read_value
from simulation.models import (
    NO_RECORD,
    PurgeJob,
    PutIfVersion,
    PutRecordValue,
    ReadRecord,
    RecordRequest,
    RecordResponse,
    RecordState,
    StopJob,
    UnchangedRecord,
    VersionConflict,
)
from simulation.process import Process
from simulation.read_checks import CheckedRead, CheckedReply
from simulation.timeline import InvariantViolation
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOB_SUMMARIES, JOBS, NODES
from wharf.contract.client import NO_RETRIES, AsyncClient, Unreachable
from wharf.contract.client.calls import Response
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import join_key
from wharf.contract.model.refusal import Refusal, RefusalCode

if TYPE_CHECKING:
    from simulation.workload import Workload

MEAN_THINK_TIME_S: Final = 0.8
WAIT_RANGE_S: Final = (10.0, 60.0)
UNDECIDED_CODES: Final = (RefusalCode.OUTCOME_UNKNOWN,)
"""Refusals after which nobody knows whether the write happened. All others say that it did not."""

UserAction = Callable[[], Awaitable[None]]


class SimulatedUser:
    """One client: it asks one thing at a time."""

    def __init__(self, workload: "Workload", name: str) -> None:
        cluster = workload.cluster
        self.name = name
        world = cluster.make_world(name, machine=name)
        self.process = Process(name, name, world)
        self._workload = workload
        self._cluster = cluster
        self._random = Random(f"{cluster.seed}/{name}")
        self._member: SimulatedServer = cluster.members[0]
        exchange = SimulatedTransport(cluster.network, self.process, lambda: self._member.address)
        self._client = AsyncClient(world, [exchange], retry_policy=NO_RETRIES)
        self._versions: dict[str, int] = {}

    @property
    def weighted_actions(self) -> Sequence[tuple[int, UserAction]]:
        """What it does, and how often."""
        return (
            (6, self._register), (3, self._register_if), (3, self._stop), (1, self._purge), (2, self._dispatch),
            (8, self._read_job), (3, self._read_node), (4, self._read_list),
        )  # fmt: skip

    async def run(self) -> None:
        deeds = self.weighted_actions
        while True:
            await asyncio.sleep(self._random.expovariate(1 / MEAN_THINK_TIME_S))
            self._turn()
            _, deed = self._random.choices(deeds, [weight for weight, _ in deeds])[0]
            await deed()

    def _turn(self) -> None:
        self._member = self._random.choice(self._cluster.members)

    # -- writes ----------------------------------------------------------------------------------------------------

    def _sketch(self) -> SimulatedJob:
        return self._random.choice(self._workload.jobs)

    async def _register(self) -> None:
        """Mostly one that runs, now and then one that is stopped from the start; at times the same twice."""
        sketch = self._sketch()
        value = (self._workload.next_value(), self._random.random() < 0.05)
        job = replace(sketch.make_job(value[0]), stop=value[1])
        for _ in range(2 if self._random.random() < 0.2 else 1):
            await self._write(sketch.id, PutRecordValue(value), lambda: self._put(job, None))

    async def _register_if(self) -> None:
        sketch = self._sketch()
        value = self._workload.next_value()
        version = self._versions.get(sketch.id, 0)
        await self._write(
            sketch.id, PutIfVersion(version, (value, False)), lambda: self._put(sketch.make_job(value), version)
        )

    async def _put(self, job: Job, enforce_index: int | None) -> RecordResponse:
        try:
            reply = await self._client.jobs.register(job, enforce_index=enforce_index)
        except Refusal as refusal:
            if refusal.text.startswith("Enforcing job modify index"):
                return VersionConflict()
            raise
        if reply.job_modify_index != reply.index:
            return UnchangedRecord(read_value(job))
        self._versions[job.id] = reply.index
        return RecordState(read_value(job), reply.index)

    async def _stop(self) -> None:
        await self._stop_job(self._sketch().id)

    async def _stop_job(self, job_id: str) -> None:
        async def stop() -> RecordResponse:
            reply = await self._client.jobs.deregister(job_id)
            return RecordState(None, reply.job_modify_index)

        await self._write(job_id, StopJob(), stop)

    async def _purge(self) -> None:
        job_id = self._sketch().id

        async def purge() -> RecordResponse:
            reply = await self._client.jobs.deregister(job_id, purge=True)
            return RecordState(None, reply.job_modify_index)

        await self._write(job_id, PurgeJob(), purge)

    async def _dispatch(self) -> None:
        """Mostly with a token, and then at times twice: that makes one child."""
        template = self._random.choice([sketch for sketch in self._workload.jobs if sketch.is_parameterized])
        token = f"{self.name} {self._random.random()}" if self._random.random() < 0.7 else ""
        restores, children = self._workload.restore_count, []
        for _ in range(2 if token and self._random.random() < 0.5 else 1):
            try:
                reply = await self._client.jobs.dispatch(template.id, payload=b"some", idempotency_token=token)
            except (Refusal, Unreachable) as error:
                self._tell(f"dispatch of {template.id}: {error}", template.id)
                continue
            self._tell(f"dispatch of {template.id}: {reply.dispatched_job_id} at {reply.index}", template.id)
            self._workload.dispatched[reply.dispatched_job_id] = reply.index
            children.append(reply.dispatched_job_id)
        if len(set(children)) > 1 and restores == self._workload.restore_count:
            self._cluster.loop.fail(InvariantViolation(f"one token made two jobs: {' and '.join(children)}", *children))

    async def _write(
        self,
        key: str,
        asked: RecordRequest,
        ask: Callable[[], Awaitable[RecordResponse]],
        *,
        history: CallHistory[RecordRequest, RecordResponse] | None = None,
    ) -> None:
        workload = self._workload
        history = history if history is not None else workload.history
        call = history.begin_call(self.name, key, asked)
        workload.pending_requests[self.process] = (history, key, asked)
        try:
            answer = await ask()
        except Unreachable as error:
            (history.leave_call_undecided if error.is_sent else history.fail_call)(call)
            self._tell(f"{asked} of {key}: {error}", key)
        except Refusal as refusal:
            (history.leave_call_undecided if refusal.code in UNDECIDED_CODES else history.fail_call)(call)
            self._tell(f"{asked} of {key}: {refusal.code}: {refusal.text}", key)
        except asyncio.CancelledError:
            history.leave_call_undecided(call)
            raise
        else:
            history.complete_call(call, answer)
            self._tell(f"{asked} of {key}: {answer}", key)
        finally:
            del workload.pending_requests[self.process]

    # -- reads -----------------------------------------------------------------------------------------------------

    async def _read_job(self) -> None:
        key = self._sketch().id
        is_stale = self._random.random() < 0.25
        call = None if is_stale else self._workload.history.begin_call(self.name, key, ReadRecord())
        try:
            job = await self._ask_job(key, stale=is_stale)
        except (Refusal, Unreachable) as error:
            if call is not None:
                self._workload.history.fail_call(call)
            self._tell(f"read {key}: {error}", key)
            return
        except asyncio.CancelledError:
            if call is not None:
                self._workload.history.fail_call(call)
            raise
        if job is not None:
            self._versions[key] = job.job_modify_index
        if call is not None:
            seen = NO_RECORD if job is None else RecordState(read_value(job), job.job_modify_index)
            self._workload.history.complete_call(call, seen)
        self._tell(f"read {key}{' (stale)' if is_stale else ''}: {read_value(job) if job else 'nothing'}", key)

    async def _ask_job(self, job_id: str, **options: Any) -> Job | None:
        question = self._question(f"job {job_id}", JOBS, key=join_key("default", job_id), **options)
        job: Job | None = await self._one(question, lambda: self._client.jobs.read(job_id, **options))
        return job

    async def _read_node(self) -> None:
        host = self._random.choice(self._cluster.nodes)
        if host.node is None:
            return
        stale = self._random.random() < 0.25
        history = self._workload.eligibility_history
        call = None if stale else history.begin_call(self.name, host.name, ReadRecord())
        node = await self._quietly(self._ask_node(host.name, host.node.id, stale=stale))
        if call is not None and node is not None:
            history.complete_call(call, RecordState(node.scheduling_eligibility == "eligible", 0))
        elif call is not None:
            history.fail_call(call)

    async def _ask_node(self, name: str, node_id: str, **options: Any) -> Any:
        question = self._question(f"node {name}", NODES, key=node_id, **options)
        return await self._one(question, lambda: self._client.nodes.read(node_id, **options))

    async def _read_list(self) -> None:
        stale = self._random.random() < 0.25
        await self._quietly(
            self._list(self._random.choice(["jobs", "nodes", "allocations", "evaluations"]), stale=stale)
        )

    async def _list(self, what: str, **options: Any) -> int:
        tables = {
            "jobs": (JOBS, JOB_SUMMARIES),
            "nodes": (NODES,),
            "allocations": (ALLOCATIONS,),
            "evaluations": (EVALUATIONS,),
        }
        question = self._question(what, *tables[what], **options)
        member, life = self._member, self._member.api.start_count
        reply: Response[list[Any]] = await getattr(self._client, what).list(**options)
        records = {
            join_key("default", each.id) if what == "jobs" else each.id: each.modify_index for each in reply.value
        }
        self._judge(question, reply.index, records, member, life)
        self._tell(f"read {what}: {len(records)} at {reply.index}")
        return reply.index

    def _question(
        self, what: str, *tables: Any, key: str = "", stale: bool = False, index: int = 0, **_: Any
    ) -> CheckedRead:
        return CheckedRead(
            client=self.name, subject=what, tables=tables, key=key, is_stale=stale, index=index,
            began_s=self._cluster.loop.time(), log_head=self._cluster.log.last_write_index,
        )  # fmt: skip

    async def _one(self, question: CheckedRead, ask: Callable[[], Awaitable[Response[Any]]]) -> Any:
        member, life = self._member, self._member.api.start_count
        try:
            reply = await ask()
        except Refusal as refusal:
            if refusal.code is not RefusalCode.NOT_FOUND:
                raise
            self._judge(question, 0, {}, member, life)
            return None
        self._judge(question, reply.index, {question.key: reply.value.modify_index}, member, life)
        return reply.value

    def _judge(
        self, question: CheckedRead, index: int, records: dict[str, int], member: SimulatedServer, life: int
    ) -> None:
        server: ServerProcess | None = member.api if member.api.start_count == life and member.api.is_alive else None
        told = CheckedReply(index=index, records=records, ended_s=self._cluster.loop.time())
        try:
            self._workload.read_checker.check_reply(question, told, server)
        except InvariantViolation as broken:
            self._cluster.loop.fail(broken)

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def run_watcher(self) -> None:
        """Follow one thing after the other, each for a while."""
        while True:
            await asyncio.sleep(self._random.uniform(0.0, 2.0))
            self._turn()
            await self._follow(self._random.randint(2, 8))

    async def _follow(self, replies: int) -> None:
        what = self._random.choice(["job", "job", "node", "jobs", "nodes", "allocations"])
        job_id, host = self._sketch().id, self._random.choice(self._cluster.nodes)
        index = 0
        for _ in range(replies):
            options: dict[str, Any] = {
                "index": index, "wait_s": self._random.uniform(*WAIT_RANGE_S), "stale": self._random.random() < 0.5,
            }  # fmt: skip
            if self._random.random() < 0.3:
                self._turn()
            try:
                if what == "job":
                    job = await self._ask_job(job_id, **options)
                    index = job.modify_index if job is not None else 0
                elif what == "node":
                    if host.node is None:
                        return
                    node = await self._ask_node(host.name, host.node.id, **options)
                    index = node.modify_index if node is not None else 0
                else:
                    index = await self._list(what, **options)
            except (Refusal, Unreachable) as error:
                self._tell(f"waits on {what}: {error}")
                return
            if not index:
                return

    async def _quietly(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except (Refusal, Unreachable) as error:
            self._tell(f"reads in vain: {error}")
            return None

    def _tell(self, text: str, *about: str) -> None:
        self._workload.timeline.add_event(f"{self.name} ({self._member.name}) {text}", self.name, *about)
