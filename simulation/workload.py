"""All who ask something of the cluster: people, operators and those who wait for changes, and what they were told."""

import asyncio
from random import Random
from typing import Final

from simulation.cluster import Cluster
from simulation.history import CallHistory
from simulation.jobs import JOB_COUNT, SimulatedJob, read_value
from simulation.models import NO_RECORD, PutRecordValue, RecordRequest, RecordResponse, RecordState, RestoreRecord
from simulation.network import SimulatedRequest
from simulation.operator import Operator
from simulation.process import Process, current_process
from simulation.read_checks import ReadChecker
from simulation.record_history import ObservedBatch
from simulation.rollout_invariants import find_reverted_job
from simulation.timeline import Timeline
from simulation.user import SimulatedUser
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS, NODES

USER_COUNT: Final = 8
OPERATOR_COUNT: Final = 2
WATCHER_COUNT: Final = 10


class Workload:
    def __init__(self, cluster: Cluster, read_checker: ReadChecker, timeline: Timeline) -> None:
        self.cluster = cluster
        self.read_checker = read_checker
        self.timeline = timeline
        self.history: CallHistory[RecordRequest, RecordResponse] = CallHistory(cluster.loop)
        self.eligibility_history: CallHistory[RecordRequest, RecordResponse] = CallHistory(cluster.loop)
        """Of the nodes: whether they take new work."""
        self.pending_requests: dict[Process, tuple[CallHistory[RecordRequest, RecordResponse], str, RecordRequest]] = {}
        """What each person asks just now, so that a request that comes twice is known for what it is."""
        random = Random(f"{cluster.seed}/jobs")
        self.jobs = [SimulatedJob(number, random) for number in range(JOB_COUNT)]
        self.dispatched: dict[str, int] = {}
        """The jobs that dispatches were answered with, and the index told."""
        self.restore_count = 0
        """How often the log was restored so far."""
        self._values = 0
        self._tasks: list[asyncio.Task[None]] = []
        cluster.network.on_repeated = self._on_repeated

    def next_value(self) -> int:
        self._values += 1
        return self._values

    def start(self) -> None:
        for number in range(USER_COUNT):
            person = SimulatedUser(self, f"person-{number + 1}")
            self._tasks.append(person.process.start(person.run(), name=person.name))
        for number in range(OPERATOR_COUNT):
            operator = Operator(self, f"operator-{number + 1}")
            self._tasks.append(operator.process.start(operator.run(), name=operator.name))
        for number in range(WATCHER_COUNT):
            watcher = SimulatedUser(self, f"watcher-{number + 1}")
            self._tasks.append(watcher.process.start(watcher.run_watcher(), name=watcher.name))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def tidy_up(self) -> None:
        """Somebody resumes what was paused, and stops the jobs that fail again and again: with them a cluster never
        comes to rest."""
        operator = Operator(self, "the tidy one")
        await operator.process.start(operator.tidy_up(), name=operator.name)

    def on_restored(self, replica: Replica) -> None:
        """The log is now as this replica shows it: whatever was told of jobs and nodes begins anew from there."""
        self.restore_count += 1
        for sketch in self.jobs:
            job = replica.get(JOBS, "default", sketch.id)
            stands = NO_RECORD if job is None else RecordState(read_value(job), job.job_modify_index)
            self.history.complete_call(self.history.begin_call("the restore", sketch.id, RestoreRecord()), stands)
        for host in self.cluster.nodes:
            node = replica.get(NODES, host.node.id) if host.node is not None else None
            eligible = node is None or node.scheduling_eligibility == "eligible"
            self.eligibility_history.complete_call(
                self.eligibility_history.begin_call("the restore", host.name, RestoreRecord()), RecordState(eligible, 0)
            )

    def on_batch(self, taken: ObservedBatch) -> None:
        """A deployment that fails takes its job back to what it was: a write of a job that nobody asked for."""
        for changed in taken.changes:
            if (job := find_reverted_job(taken.batch.kind, changed)) is not None and job.parent_id == "":
                call = self.history.begin_call("the end of a deployment", job.id, PutRecordValue(read_value(job)))
                self.history.complete_call(call, RecordState(read_value(job), taken.batch.index))

    def _on_repeated(self, _request: SimulatedRequest) -> None:
        process = current_process()
        asking = self.pending_requests.get(process) if process is not None else None
        if asking is not None:
            history, key, asked = asking
            history.leave_call_undecided(history.begin_call("the network", key, asked))
