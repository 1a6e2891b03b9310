"""What the simulated clients share: the jobs that they use, and the history of their calls for the final checks."""

from random import Random
from typing import Final

from simulation.cluster import Cluster
from simulation.history import CallHistory
from simulation.jobs import JOB_COUNT, SimulatedJob, read_value
from simulation.models import NO_RECORD, PutRecordValue, RecordRequest, RecordResponse, RecordState, RestoreRecord
from simulation.network import SimulatedRequest
from simulation.process import Process, current_process
from simulation.read_checks import ReadChecker
from simulation.record_history import ObservedBatch
from simulation.rollout_invariants import find_reverted_job
from simulation.timeline import Timeline
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS, NODES
from wharf.contract.model.jobs.job import JobType

RESTORE_CLIENT: Final = "the restore"


class ClientRecords:
    """The calls of all clients, and their replies."""

    def __init__(
        self, cluster: Cluster, read_checker: ReadChecker, timeline: Timeline, *, only_batch: bool = False
    ) -> None:
        self.cluster = cluster
        self.read_checker = read_checker
        self.timeline = timeline
        self.history: CallHistory[RecordRequest, RecordResponse] = CallHistory(cluster.loop)
        """Calls that read or write jobs."""
        self.eligibility_history: CallHistory[RecordRequest, RecordResponse] = CallHistory(cluster.loop)
        """Calls that read or write the eligibility of nodes."""
        self.pending_requests: dict[Process, tuple[CallHistory[RecordRequest, RecordResponse], str, RecordRequest]] = {}
        """The current write of each client, with its history and key. If the network repeats it, the copy is recorded."""
        random = Random(f"{cluster.seed}/jobs")
        self.jobs = [SimulatedJob(number, random) for number in range(JOB_COUNT)]
        if only_batch:
            self.jobs = [job for job in self.jobs if job.type == JobType.BATCH]
        self.dispatched: dict[str, int] = {}
        """The child jobs in the replies to dispatches, with the index of the reply."""
        self.restore_count = 0
        self._last_value = 0
        cluster.network.on_repeated = self._on_repeated

    def next_value(self) -> int:
        """Return a new value for a job. No two writes have the same value."""
        self._last_value += 1
        return self._last_value

    def on_restored(self, replica: Replica) -> None:
        """Record that the log was restored to the state of this replica. Jobs and nodes continue from it."""
        self.restore_count += 1
        for sketch in self.jobs:
            job = replica.get(JOBS, "default", sketch.id)
            state = NO_RECORD if job is None else RecordState(read_value(job), job.job_modify_index)
            self.history.complete_call(self.history.begin_call(RESTORE_CLIENT, sketch.id, RestoreRecord()), state)
        for host in self.cluster.nodes:
            node = replica.get(NODES, host.node.id) if host.node is not None else None
            eligible = node is None or node.scheduling_eligibility == "eligible"
            self.eligibility_history.complete_call(
                self.eligibility_history.begin_call(RESTORE_CLIENT, host.name, RestoreRecord()),
                RecordState(eligible, 0),
            )

    def on_batch(self, batch: ObservedBatch) -> None:
        """Record the writes of failed deployments: they revert a job, and no client requested that."""
        for changed in batch.changes:
            if (job := find_reverted_job(batch.batch.kind, changed)) is not None and job.parent_id == "":
                call = self.history.begin_call("the end of a deployment", job.id, PutRecordValue(read_value(job)))
                self.history.complete_call(call, RecordState(read_value(job), batch.batch.index))

    def _on_repeated(self, _request: SimulatedRequest) -> None:
        """Record a second call with an unknown outcome: the network delivered a request twice."""
        process = current_process()
        pending = self.pending_requests.get(process) if process is not None else None
        if pending is not None:
            history, key, request = pending
            history.leave_call_undecided(history.begin_call("the network", key, request))
