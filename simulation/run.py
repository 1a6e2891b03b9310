"""Runs one seed: a cluster works while faults happen, becomes steady after their repair, and is checked."""

import asyncio
import logging
import time
import traceback
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from simulation.array_invariants import ArrayInvariants
from simulation.chaos import LEASE_EXPIRED, Chaos
from simulation.client_records import ClientRecords
from simulation.cluster import Cluster, make_log
from simulation.contact_invariants import ContactInvariants
from simulation.error_checks import ErrorLogHandler, check_responses
from simulation.fault_source import NO_FAULTS, FaultSource
from simulation.flow_invariants import FlowInvariants
from simulation.history import CallHistory
from simulation.invariants import BatchInvariants, Transition, require_consistent_state, require_same_records
from simulation.jobs import read_value
from simulation.linearizability import Model, check_all_keys
from simulation.lock_invariants import LockInvariants
from simulation.loop import RunFailed, SimulatedLoop, SimulationStuck
from simulation.models import (
    NO_RECORD,
    PurgeJob,
    ReadRecord,
    RecordRequest,
    RecordResponse,
    RecordState,
    RegisterModel,
    RestoreRecord,
    VersionedRecordModel,
)
from simulation.output_invariants import OutputInvariants
from simulation.planted_bugs import PlantedBug, plant_bug
from simulation.read_checks import ReadChecker
from simulation.record_history import ObservedBatch, RecordHistory
from simulation.rollout_invariants import RolloutInvariants
from simulation.run_invariants import RunInvariants
from simulation.steady_state import has_reservation_due, require_steady_state
from simulation.task_invariants import TaskInvariants
from simulation.task_runs import TaskRunLog
from simulation.timeline import InvariantViolation, Timeline, TimelineLogHandler
from simulation.workload import Workload
from wharf.cluster.engines.port import LEASE_ENDED_KIND
from wharf.cluster.state.tables import JOBS, LEADER
from wharf.contract.model.log import join_key

MIN_EVENTS: Final = 2_000
MIN_FAULTS: Final = 10
MIN_LOAD_S: Final = 60.0
MAX_LOAD_S: Final = 900.0
EVENTS_PER_FULL_CHECK: Final = 200
MAX_STEPS: Final = 1_500_000
MAX_SETTLE_S: Final = 400.0
RESERVATION_WAIT_S: Final = 200.0
"""After this time, each evaluation that still waits for capacity must have a reserved node."""
CONTACT_WAIT_S: Final = 60.0
"""How long lost nodes have to come back after other faults. A new leader waits 40 s for them."""
CONTACT_CHECK_S: Final = 200.0
"""How long faults happen that must cost no node: four or five of them."""


class SeedFailure(msgspec.Struct, frozen=True):
    """The error that ended a seed, and the timeline before it."""

    text: str
    timeline: Sequence[str]


class SeedResult(msgspec.Struct, frozen=True):
    """The result of a seed, with the figures of its coverage."""

    seed: int
    fingerprint: str
    events: int
    steps: int
    virtual_s: float
    real_s: float
    faults: dict[str, int]
    transitions: dict[Transition, int]
    calls: int
    reads_checked: int
    full_checks: int
    failure: SeedFailure | None


class SeedRun:
    """A simulated cluster with its clients, faults and checks."""

    def __init__(
        self, seed: int, *, bug: PlantedBug | None = None, is_shuffled: bool = True, only_batch: bool = False
    ) -> None:
        """`only_batch`: the clients use only batch jobs, of which most have arrays or steps."""
        self.seed = seed
        self.loop = SimulatedLoop(seed, is_shuffled=is_shuffled, max_steps=MAX_STEPS)
        self.timeline = Timeline(self.loop)
        self.log = make_log(self.loop, seed)
        self.fault_source = FaultSource(seed)
        self.fault_source.fault_rate = NO_FAULTS
        self.record_history = RecordHistory(self.timeline, self.loop.fail)
        self.task_runs = TaskRunLog(self.record_history, self.timeline, self.loop.fail)
        self.cluster = Cluster(seed, self.loop, self.log, self.fault_source, self.task_runs)
        self.task_invariants = TaskInvariants(self.cluster, self.record_history)
        self.log.observer = self.record_history
        # First: a run that is launched twice also violates rules about versions.
        self.flow_invariants = FlowInvariants(self.record_history, self.task_runs)
        self.batch_invariants = BatchInvariants(self.record_history)
        self.array_invariants = ArrayInvariants(self.record_history)
        self.lock_invariants = LockInvariants(self.record_history, self.task_runs)
        self.run_invariants = RunInvariants(self.record_history)
        self.output_invariants = OutputInvariants(self.record_history, self.task_runs)
        self.contact_invariants = ContactInvariants(self.record_history)
        self.rollout_invariants = RolloutInvariants(self.record_history, self.loop.time)
        self.record_history.batch_checks += [self._count_leases, self._check_periodically]
        self.read_checker = ReadChecker(self.record_history)
        self.chaos = Chaos(self.cluster, self.timeline)
        self.client_records = ClientRecords(self.cluster, self.read_checker, self.timeline, only_batch=only_batch)
        self.workload = Workload(self.client_records)
        self.record_history.batch_checks.append(self.client_records.on_batch)
        self.record_history.on_new_epoch.append(lambda: self.client_records.on_restored(self.record_history.replica))
        self.full_check_count = 0
        self._checked_at_event = 0
        self.cluster.wrap_app = lambda process, app: check_responses(app, process.name, self.loop.fail)
        if bug is not None:
            plant_bug(bug, self.cluster)

    # -- phases ----------------------------------------------------------------------------------------------------

    def run(self) -> SeedResult:
        """Run all phases and final checks. Return a failure instead of raising it."""
        started_s = time.perf_counter()
        handlers = (TimelineLogHandler(self.timeline), ErrorLogHandler(self.loop.fail))
        logger = logging.getLogger("wharf")
        old_level, old_propagate = logger.level, logger.propagate
        for handler in handlers:
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        failure = None
        try:
            self.loop.run_until_complete(self._run_phases())
            self._require_acknowledged()
            self._require_linearizable()
        except InvariantViolation as violation:
            failure = self._make_failure(str(violation), violation.subjects)
        except (RunFailed, SimulationStuck) as error:
            failure = self._make_failure(str(error), ())
        except Exception as error:  # Any other error also fails this seed only.
            failure = self._make_failure("".join(traceback.format_exception(error)), ())
        finally:
            for handler in handlers:
                logger.removeHandler(handler)
            logger.setLevel(old_level)
            logger.propagate = old_propagate
            self.loop.abandon()
        return SeedResult(
            seed=self.seed, fingerprint=self.loop.fingerprint, events=self.timeline.event_count, steps=self.loop.steps,
            virtual_s=self.loop.time(), real_s=time.perf_counter() - started_s, faults=dict(self.fault_source.counts),
            transitions=dict(self.batch_invariants.transitions), calls=len(self.client_records.history.calls) + len(self.client_records.eligibility_history.calls),
            reads_checked=self.read_checker.checked_count, full_checks=self.full_check_count, failure=failure,
        )  # fmt: skip

    async def _run_phases(self) -> None:
        """Start the cluster, run clients and faults, repair the faults, and wait for a steady cluster."""
        self.cluster.start()
        await asyncio.sleep(8.0)
        self.workload.start()
        chaos_task = self.cluster.log_world.start_task(self.chaos.run(), name="chaos")
        started_s = self.loop.time()
        while not self._has_enough_load(started_s):
            await asyncio.sleep(1.0)
            if chaos_task.done():
                chaos_task.result()
        chaos_task.cancel()
        await asyncio.gather(chaos_task, return_exceptions=True)
        await self.workload.stop()
        await self.chaos.repair_all()
        if not self.seed % 2:  # Nodes of odd seeds have so short heartbeats that any fault may cost one.
            await self._require_contact()
        await asyncio.sleep(30.0)
        await self.workload.tidy_up()
        await self._wait_until_steady()
        if has_reservation_due(self.record_history.replica):
            await asyncio.sleep(RESERVATION_WAIT_S)
            await self._wait_until_steady()
        self._check_whole_state(deep=True)

    async def _require_contact(self) -> None:
        """Inject faults that must cost no node, and require that the nodes that know all servers stay in contact."""
        await asyncio.sleep(CONTACT_WAIT_S)
        self.contact_invariants.begin({node.name for node in self.cluster.nodes if node.knows_all_servers})
        await self.chaos.run_costless_faults(CONTACT_CHECK_S)
        self.contact_invariants.end()
        await self.chaos.repair_all()

    def _has_enough_load(self, started_s: float) -> bool:
        """Return whether enough events and faults happened, or the time limit has passed."""
        duration_s = self.loop.time() - started_s
        has_enough = self.timeline.event_count >= MIN_EVENTS and sum(self.fault_source.counts.values()) >= MIN_FAULTS
        return (has_enough and duration_s >= MIN_LOAD_S) or duration_s > MAX_LOAD_S

    async def _wait_until_steady(self) -> None:
        """Wait until the cluster is steady. Raise the last `InvariantViolation` at the time limit."""
        deadline_s = self.loop.time() + MAX_SETTLE_S
        while True:
            await asyncio.sleep(10.0)
            try:
                self.lock_invariants.require_free_locks_are_taken()
                require_steady_state(self.record_history, self._read_leader_clock_ns())
                self.run_invariants.require_ended()
                self.task_invariants.check_running_tasks()
                self._require_caught_up()
                return
            except InvariantViolation:
                if self.loop.time() > deadline_s:
                    raise

    def _read_leader_clock_ns(self) -> int:
        """Return the time of the leader's clock, which decides how long evaluations have waited. Steps of clocks remain."""
        leader = self.record_history.replica.get(LEADER)
        offset_ns = self.cluster.clock_offsets_ns.get(leader.member_id, 0) if leader is not None else 0
        return self.cluster.log_world.now_ns() + offset_ns

    def _require_caught_up(self) -> None:
        """Require that every replica has applied the whole log."""
        for process in self.cluster.server_processes:
            applied_index = process.server.replica.index if process.server is not None else 0
            if applied_index < self.log.last_write_index:
                raise InvariantViolation(
                    f"{process.name} has applied index {applied_index}; the log ends at {self.log.last_write_index}",
                    process.name,
                )

    # -- checks ----------------------------------------------------------------------------------------------------

    def _count_leases(self, observed: ObservedBatch) -> None:
        if observed.batch.kind == LEASE_ENDED_KIND:
            self.fault_source.count_fault(LEASE_EXPIRED)

    def _check_periodically(self, _observed: ObservedBatch) -> None:
        if self.timeline.event_count - self._checked_at_event >= EVENTS_PER_FULL_CHECK:
            self._checked_at_event = self.timeline.event_count
            self._check_whole_state(deep=False)

    def _check_whole_state(self, *, deep: bool) -> None:
        """Check the newest state, all replicas, and tasks that should have stopped."""
        self.full_check_count += 1
        require_consistent_state(self.record_history)
        self.task_invariants.check_stopping_tasks()
        for process in self.cluster.server_processes:
            if process.is_alive and process.server is not None and process.server.replica.index:
                require_same_records(self.record_history, process.server.replica, process.name, is_deep=deep)

    def _require_acknowledged(self) -> None:
        """Require that each acknowledged write is in the log, at the index in its reply and with the requested value."""
        for call in self.client_records.history.calls:
            reply = call.response
            if (
                isinstance(call.request, ReadRecord | RestoreRecord)
                or not isinstance(reply, RecordState)
                or reply == NO_RECORD
            ):
                continue
            job = self.record_history.get_record(JOBS, join_key("default", call.key), reply.version)
            if isinstance(call.request, PurgeJob):
                if job is not None:
                    raise InvariantViolation(f"a purged job is still in the log: {call.describe()}", call.key)
                continue
            if job is None or job.modify_index != reply.version:
                raise InvariantViolation(f"an acknowledged write is not in the log: {call.describe()}", call.key)
            if reply.value is not None and read_value(job) != reply.value:
                raise InvariantViolation(
                    f"the log has {read_value(job)} in place of an acknowledged write: {call.describe()}", call.key
                )

        for job_id, index in self.client_records.dispatched.items():
            if self.record_history.get_record(JOBS, join_key("default", job_id), index) is None:
                raise InvariantViolation(f"dispatched job {job_id} is not in the log at {index}", job_id)

    def _require_linearizable(self) -> None:
        _require_linearizable_calls(self.client_records.history, VersionedRecordModel())
        _require_linearizable_calls(self.client_records.eligibility_history, RegisterModel(True))

    def _make_failure(self, text: str, subjects: Sequence[str]) -> SeedFailure:
        return SeedFailure(text, [str(line) for line in self.timeline.select_entries(subjects)])


def _require_linearizable_calls(
    history: CallHistory[RecordRequest, RecordResponse], model: Model[Any, RecordRequest, RecordResponse]
) -> None:
    """Check the calls of each key. Raise `InvariantViolation` for a key without a possible order."""
    for key, verdict in check_all_keys(history.calls, model).items():
        if not verdict.is_linearizable:
            all_calls = "\n".join(f"  {call.describe()}" for call in history.calls if call.key == key)
            blocked_calls = "\n".join(f"  {call.describe()}" for call in verdict.blocked_calls)
            raise InvariantViolation(
                f"no order of these calls explains their replies; the first ones without a position:\n{blocked_calls}\n"
                f"all calls:\n{all_calls}",
                key,
            )


def run_seed(
    seed: int, *, bug: PlantedBug | None = None, is_shuffled: bool = True, only_batch: bool = False
) -> SeedResult:
    return SeedRun(seed, bug=bug, is_shuffled=is_shuffled, only_batch=only_batch).run()
