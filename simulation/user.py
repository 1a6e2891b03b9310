"""One simulated client of the cluster: it registers, stops, purges, dispatches and reads jobs, through the real API client.

Each call and its reply are recorded in a history, for the final check, and each read is checked at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from simulation.client_records import ClientRecords
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
    RerunElements,
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

MEAN_THINK_TIME_S: Final = 0.8
WAIT_RANGE_S: Final = (10.0, 60.0)
UNDECIDED_CODES: Final = (RefusalCode.OUTCOME_UNKNOWN,)
"""Refusals that leave open whether the write happened. After all others it did not happen."""

UserAction = Callable[[], Awaitable[None]]


class SimulatedUser:
    """One client. It sends one request at a time."""

    def __init__(self, records: ClientRecords, name: str) -> None:
        cluster = records.cluster
        self.name = name
        world = cluster.make_world(name, machine=name)
        self.process = Process(name, name, world)
        self._records = records
        self._cluster = cluster
        self._random = Random(f"{cluster.seed}/{name}")
        self._member: SimulatedServer = cluster.members[0]
        transport = SimulatedTransport(cluster.network, self.process, lambda: self._member.address)
        self._client = AsyncClient(world, [transport], retry_policy=NO_RETRIES)
        self._versions: dict[str, int] = {}

    @property
    def weighted_actions(self) -> Sequence[tuple[int, UserAction]]:
        """The actions of this client, with the relative frequency of each."""
        return (
            (6, self._register), (3, self._register_if), (3, self._stop), (1, self._purge), (2, self._dispatch),
            (3, self._rerun), (1, self._stop_elements),
            (8, self._read_job), (3, self._read_node), (4, self._read_list),
        )  # fmt: skip

    async def run(self) -> None:
        """Perform random actions without end, with pauses."""
        actions = self.weighted_actions
        while True:
            await asyncio.sleep(self._random.expovariate(1 / MEAN_THINK_TIME_S))
            self._choose_member()
            _, action = self._random.choices(actions, [weight for weight, _ in actions])[0]
            await action()

    def _choose_member(self) -> None:
        self._member = self._random.choice(self._cluster.members)

    # -- writes ----------------------------------------------------------------------------------------------------

    def _choose_job(self) -> SimulatedJob:
        return self._random.choice(self._records.jobs)

    async def _register(self) -> None:
        """Register a job; in 5 % of the cases a stopped one. In 20 % of the cases, send the same request twice."""
        sketch = self._choose_job()
        value = (self._records.next_value(), self._random.random() < 0.05)
        job = replace(sketch.make_job(value[0]), stop=value[1])
        for _ in range(2 if self._random.random() < 0.2 else 1):
            await self._write(sketch.id, PutRecordValue(value), lambda: self._put(job, None))

    async def _register_if(self) -> None:
        """Register a job only if it still has the version that this client saw last."""
        sketch = self._choose_job()
        value = self._records.next_value()
        version = self._versions.get(sketch.id, 0)
        await self._write(
            sketch.id, PutIfVersion(version, (value, False)), lambda: self._put(sketch.make_job(value), version)
        )

    async def _put(self, job: Job, enforce_index: int | None) -> RecordResponse:
        """Register a job. Return the response for the history."""
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
        await self._stop_job(self._choose_job().id)

    async def _stop_job(self, job_id: str) -> None:
        async def stop() -> RecordResponse:
            reply = await self._client.jobs.deregister(job_id)
            return RecordState(None, reply.job_modify_index)

        await self._write(job_id, StopJob(), stop)

    async def _purge(self) -> None:
        job_id = self._choose_job().id

        async def purge() -> RecordResponse:
            reply = await self._client.jobs.deregister(job_id, purge=True)
            return RecordState(None, reply.job_modify_index)

        await self._write(job_id, PurgeJob(), purge)

    def _choose_array(self) -> SimulatedJob:
        return self._random.choice([sketch for sketch in self._records.jobs if sketch.is_array])

    async def _rerun(self) -> None:
        """Run the failed elements of an array again, or some by their indexes. Elements that have not ended are refused."""
        job_id = self._choose_array().id
        first = self._random.randrange(4)
        indexes = "" if self._random.random() < 0.5 else f"{first}-{first + self._random.randrange(2)}"

        async def rerun() -> RecordResponse:
            reply = await self._client.jobs.rerun(job_id, failed=not indexes, indexes=indexes)
            return RecordState(None, reply.job_modify_index) if reply.attempt else UnchangedRecord(None)

        await self._write(job_id, RerunElements(), rerun)

    async def _stop_elements(self) -> None:
        """Stop one element of an array, or two."""
        job_id = self._choose_array().id
        first = self._random.randrange(6)
        indexes = f"{first}-{first + self._random.randrange(2)}"
        reply = await self._try_call(self._client.jobs.stop_elements(job_id, indexes))
        if reply is not None:
            self._log(f"stop {indexes} of {job_id}: {reply.element_count} at {reply.index}", job_id)

    async def _dispatch(self) -> None:
        """Dispatch a job, mostly with an idempotency token. Two dispatches with one token must create one child."""
        template = self._random.choice([sketch for sketch in self._records.jobs if sketch.is_parameterized])
        token = f"{self.name} {self._random.random()}" if self._random.random() < 0.7 else ""
        restores, children = self._records.restore_count, []
        for _ in range(2 if token and self._random.random() < 0.5 else 1):
            try:
                reply = await self._client.jobs.dispatch(template.id, payload=b"some", idempotency_token=token)
            except (Refusal, Unreachable) as error:
                self._log(f"dispatch of {template.id}: {error}", template.id)
                continue
            self._log(f"dispatch of {template.id}: {reply.dispatched_job_id} at {reply.index}", template.id)
            self._records.dispatched[reply.dispatched_job_id] = reply.index
            children.append(reply.dispatched_job_id)
        if len(set(children)) > 1 and restores == self._records.restore_count:
            self._cluster.loop.fail(InvariantViolation(f"one token made two jobs: {' and '.join(children)}", *children))

    async def _write(
        self,
        key: str,
        request: RecordRequest,
        send: Callable[[], Awaitable[RecordResponse]],
        *,
        history: CallHistory[RecordRequest, RecordResponse] | None = None,
    ) -> None:
        """Send a write and record its outcome: done, failed, or undecided."""
        records = self._records
        history = history if history is not None else records.history
        call = history.begin_call(self.name, key, request)
        records.pending_requests[self.process] = (history, key, request)
        try:
            response = await send()
        except Unreachable as error:
            (history.leave_call_undecided if error.is_sent else history.fail_call)(call)
            self._log(f"{request} of {key}: {error}", key)
        except Refusal as refusal:
            (history.leave_call_undecided if refusal.code in UNDECIDED_CODES else history.fail_call)(call)
            self._log(f"{request} of {key}: {refusal.code}: {refusal.text}", key)
        except asyncio.CancelledError:
            history.leave_call_undecided(call)
            raise
        else:
            history.complete_call(call, response)
            self._log(f"{request} of {key}: {response}", key)
        finally:
            del records.pending_requests[self.process]

    # -- reads -----------------------------------------------------------------------------------------------------

    async def _read_job(self) -> None:
        """Read a job, by a stale read in 25 % of the cases. The history contains only default reads."""
        key = self._choose_job().id
        is_stale = self._random.random() < 0.25
        call = None if is_stale else self._records.history.begin_call(self.name, key, ReadRecord())
        try:
            job = await self._read_checked_job(key, stale=is_stale)
        except (Refusal, Unreachable) as error:
            if call is not None:
                self._records.history.fail_call(call)
            self._log(f"read {key}: {error}", key)
            return
        except asyncio.CancelledError:
            if call is not None:
                self._records.history.fail_call(call)
            raise
        if job is not None:
            self._versions[key] = job.job_modify_index
        if call is not None:
            state = NO_RECORD if job is None else RecordState(read_value(job), job.job_modify_index)
            self._records.history.complete_call(call, state)
        self._log(f"read {key}{' (stale)' if is_stale else ''}: {read_value(job) if job else 'nothing'}", key)

    async def _read_checked_job(self, job_id: str, **options: Any) -> Job | None:
        read = self._describe_read(f"job {job_id}", JOBS, key=join_key("default", job_id), **options)
        job: Job | None = await self._send_read(read, lambda: self._client.jobs.read(job_id, **options))
        return job

    async def _read_node(self) -> None:
        host = self._random.choice(self._cluster.nodes)
        if host.node is None:
            return
        stale = self._random.random() < 0.25
        history = self._records.eligibility_history
        call = None if stale else history.begin_call(self.name, host.name, ReadRecord())
        node = await self._try_call(self._read_checked_node(host.name, host.node.id, stale=stale))
        if call is not None and node is not None:
            history.complete_call(call, RecordState(node.scheduling_eligibility == "eligible", 0))
        elif call is not None:
            history.fail_call(call)

    async def _read_checked_node(self, name: str, node_id: str, **options: Any) -> Any:
        read = self._describe_read(f"node {name}", NODES, key=node_id, **options)
        return await self._send_read(read, lambda: self._client.nodes.read(node_id, **options))

    async def _read_list(self) -> None:
        stale = self._random.random() < 0.25
        await self._try_call(
            self._list(self._random.choice(["jobs", "nodes", "allocations", "evaluations"]), stale=stale)
        )

    async def _list(self, noun: str, **options: Any) -> int:
        """Read a list, check it, and return its index."""
        tables = {
            "jobs": (JOBS, JOB_SUMMARIES),
            "nodes": (NODES,),
            "allocations": (ALLOCATIONS,),
            "evaluations": (EVALUATIONS,),
        }
        read = self._describe_read(noun, *tables[noun], **options)
        member, start_count = self._member, self._member.api.start_count
        reply: Response[list[Any]] = await getattr(self._client, noun).list(**options)
        records = {
            join_key("default", record.id) if noun == "jobs" else record.id: record.modify_index
            for record in reply.value
        }
        self._check_reply(read, reply.index, records, member, start_count)
        self._log(f"read {noun}: {len(records)} at {reply.index}")
        return reply.index

    def _describe_read(
        self, subject: str, *tables: Any, key: str = "", stale: bool = False, index: int = 0, **_: Any
    ) -> CheckedRead:
        return CheckedRead(
            client=self.name, subject=subject, tables=tables, key=key, is_stale=stale, index=index,
            started_s=self._cluster.loop.time(), log_head=self._cluster.log.last_write_index,
        )  # fmt: skip

    async def _send_read(self, read: CheckedRead, send: Callable[[], Awaitable[Response[Any]]]) -> Any:
        """Send a read, check its reply, and return the record, or `None` if there is none."""
        member, start_count = self._member, self._member.api.start_count
        try:
            reply = await send()
        except Refusal as refusal:
            if refusal.code is not RefusalCode.NOT_FOUND:
                raise
            self._check_reply(read, 0, {}, member, start_count)
            return None
        self._check_reply(read, reply.index, {read.key: reply.value.modify_index}, member, start_count)
        return reply.value

    def _check_reply(
        self, read: CheckedRead, index: int, records: dict[str, int], member: SimulatedServer, start_count: int
    ) -> None:
        server: ServerProcess | None = (
            member.api if member.api.start_count == start_count and member.api.is_alive else None
        )
        reply = CheckedReply(index=index, records=records, ended_s=self._cluster.loop.time())
        try:
            self._records.read_checker.check_reply(read, reply, server)
        except InvariantViolation as violation:
            self._cluster.loop.fail(violation)

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def run_watcher(self) -> None:
        """Follow one record or list after the other with blocking queries."""
        while True:
            await asyncio.sleep(self._random.uniform(0.0, 2.0))
            self._choose_member()
            await self._follow(self._random.randint(2, 8))

    async def _follow(self, replies: int) -> None:
        """Send blocking queries for one record or list, each from the index of the last reply."""
        subject = self._random.choice(["job", "job", "node", "jobs", "nodes", "allocations"])
        job_id, host = self._choose_job().id, self._random.choice(self._cluster.nodes)
        index = 0
        for _ in range(replies):
            options: dict[str, Any] = {
                "index": index, "wait_s": self._random.uniform(*WAIT_RANGE_S), "stale": self._random.random() < 0.5,
            }  # fmt: skip
            if self._random.random() < 0.3:
                self._choose_member()
            try:
                if subject == "job":
                    job = await self._read_checked_job(job_id, **options)
                    index = job.modify_index if job is not None else 0
                elif subject == "node":
                    if host.node is None:
                        return
                    node = await self._read_checked_node(host.name, host.node.id, **options)
                    index = node.modify_index if node is not None else 0
                else:
                    index = await self._list(subject, **options)
            except (Refusal, Unreachable) as error:
                self._log(f"blocking query of {subject} failed: {error}")
                return
            if not index:
                return

    async def _try_call(self, call: Awaitable[Any]) -> Any:
        """Return the result of a call, or `None` if it failed."""
        try:
            return await call
        except (Refusal, Unreachable) as error:
            self._log(f"call failed: {error}")
            return None

    def _log(self, text: str, *subjects: str) -> None:
        """Add a line to the timeline of the run."""
        self._records.timeline.add_event(f"{self.name} ({self._member.name}) {text}", self.name, *subjects)
