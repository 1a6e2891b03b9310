"""What must hold whatever happens: checked on what each batch changed, and in full now and then.

Every check is computed plainly from the records, apart from the product's own arithmetic, so that both cannot be wrong
in the same way.
"""

from collections.abc import Callable
from typing import Any, Final

from simulation.process import Process
from simulation.record_history import ObservedBatch, ObservedChange, RecordHistory
from simulation.timeline import InvariantViolation
from wharf.cluster.engines.port import EncodedWrite
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ALLOCATIONS_ON_NODE,
    DEPLOYMENTS,
    EVALUATIONS,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
    LEADER,
    NODES,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.resources import AllocatedResources, AllocatedTaskResources
from wharf.contract.model.jobs.groups import LifecycleHook
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.log import CauseKind
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.state_machines.transitions import (
    ALLOCATION_DESIRED_STATES,
    ALLOCATION_STATES,
    DEPLOYMENT_STATES,
    EVALUATION_STATES,
    JOB_STATES,
    NODE_STATES,
    AnyStateMachine,
)

STATE_MACHINES_BY_TABLE: Final[dict[str, tuple[tuple[AnyStateMachine, str], ...]]] = {
    JOBS.name: ((JOB_STATES, "status"),),
    EVALUATIONS.name: ((EVALUATION_STATES, "status"),),
    ALLOCATIONS.name: ((ALLOCATION_STATES, "client_status"), (ALLOCATION_DESIRED_STATES, "desired_status")),
    DEPLOYMENTS.name: ((DEPLOYMENT_STATES, "status"),),
    NODES.name: ((NODE_STATES, "status"),),
}

LEADER_WRITE_CAUSES: Final = frozenset({CauseKind.EVALUATION, CauseKind.NODE})
LEADER_WRITE_KINDS: Final = frozenset({"jobs-settled", "evaluations-unblocked"})
"""What only a leader writes: by its cause, or by its kind."""

UPDATE_STOP_DESCRIPTION: Final = "alloc is being updated due to job update"
"""How a stop is described that only makes room for the next version."""

Transition = tuple[str, str | None, str]


class BatchInvariants:
    """The checks on each batch. `transitions` counts the steps that were taken."""

    def __init__(self, history: RecordHistory) -> None:
        self.transitions: dict[Transition, int] = {}
        self._witness = history
        self._write_ids: dict[str, int] = {}
        history.write_checks.append(self.check_leader_condition)
        history.batch_checks += [
            self.check_unique_write_id,
            self.check_leader_commit,
            self.check_state_transitions,
            self.check_node_capacity,
            self.check_job_versions,
            self.check_unique_placements,
        ]

    @property
    def _replica(self) -> Replica:
        return self._witness.replica

    def check_leader_condition(self, write: EncodedWrite, process: Process | None) -> None:
        if _is_the_leaders(write) and not any(condition.table == LEADER.name for condition in write.conditions):
            name = process.name if process is not None else "nobody"
            raise InvariantViolation(f"{name} asked for {write.kind} without the leader's condition", name)

    def check_unique_write_id(self, taken: ObservedBatch) -> None:
        batch = taken.batch
        if batch.id and batch.id in self._write_ids:
            raise InvariantViolation(
                f"write {batch.id} happened at {self._write_ids[batch.id]} and again at {batch.index}"
            )
        self._write_ids[batch.id] = batch.index

    def check_leader_commit(self, taken: ObservedBatch) -> None:
        if taken.write is None or taken.process is None or not _is_the_leaders(taken.write):
            return
        leader = self._replica.get(LEADER)
        writer = taken.process.machine
        if leader is None or leader.member_id != writer:
            raise InvariantViolation(
                f"{taken.process.name} committed {taken.batch.kind} at {taken.batch.index} as leader; the leader is "
                f"{leader.member_id if leader is not None else 'nobody'}",
                taken.process.name,
            )

    def check_state_transitions(self, taken: ObservedBatch) -> None:
        for changed in taken.changes:
            if changed.new is None:
                continue
            for machine, field in STATE_MACHINES_BY_TABLE.get(changed.table, ()):
                old = getattr(changed.old, field) if changed.old is not None else None
                new = getattr(changed.new, field)
                if not machine.allows(old, new):
                    raise InvariantViolation(
                        f"{machine.name} {_short(changed)} went from {old} to {new} at {taken.batch.index}",
                        *_names(changed),
                    )
                if old is not new:
                    step = (machine.name, old.value if old is not None else None, new.value)
                    self.transitions[step] = self.transitions.get(step, 0) + 1

    def check_node_capacity(self, taken: ObservedBatch) -> None:
        nodes: dict[str, None] = {}
        for changed in taken.changes:
            if changed.new is None:
                continue
            if changed.table == ALLOCATIONS.name:
                nodes[changed.new.node_id] = None
            elif changed.table == NODES.name:
                nodes[changed.key] = None
        for node_id in nodes:
            require_capacity(self._replica, node_id, taken.batch.index)

    def check_job_versions(self, taken: ObservedBatch) -> None:
        for changed in taken.changes:
            if changed.table != JOBS.name or changed.new is None:
                continue
            job: Job = changed.new
            require_job_version(self._replica, job, taken.batch.index)
            old: Job | None = changed.old
            if old is not None and not old.version <= job.version <= old.version + 1:
                raise InvariantViolation(f"job {job.id} went from version {old.version} to {job.version}", job.id)
            if old is not None and old.version == job.version and old.job_modify_index != job.job_modify_index:
                raise InvariantViolation(
                    f"job {job.id} has another JobModifyIndex and the same version {job.version}", job.id
                )

    def check_unique_placements(self, taken: ObservedBatch) -> None:
        for changed in taken.changes:
            if changed.table == ALLOCATIONS.name and changed.old is None and changed.new is not None:
                require_unique_slot(self._replica, changed.new)


def _is_the_leaders(write: EncodedWrite) -> bool:
    return write.cause.kind in LEADER_WRITE_CAUSES or write.kind in LEADER_WRITE_KINDS


def _short(changed: ObservedChange) -> str:
    return "/".join(_names(changed))


def _names(changed: ObservedChange) -> list[str]:
    return changed.key.split("\0")


# -- one record's surroundings -------------------------------------------------------------------------------------


def require_capacity(replica: Replica, node_id: str, index: int) -> None:
    """What is on a node fits in it: shares, memory, disk; no port and no core has two owners."""
    node: Node | None = replica.get(NODES, node_id)
    if node is None or node.node_resources is None:
        return
    here = [a for a in replica.list_by_index(ALLOCATIONS_ON_NODE, node_id) if is_using_resources(a)]
    cpu = memory = disk = 0
    owned: dict[tuple[str, object], str] = {}
    for allocation in here:
        resources = allocation.allocated_resources
        if resources is None:
            continue
        disk += resources.shared.disk_mb
        things: list[tuple[str, object]] = [
            ("port", (port.host_ip, port.value)) for port in resources.shared.ports or () if not port.ignore_collision
        ]
        cpu += compute_peak_usage(resources, lambda task: task.cpu.cpu_shares)
        memory += compute_peak_usage(resources, lambda task: task.memory.memory_mb)
        for task in (resources.tasks or {}).values():
            things += [("core", core) for core in task.cpu.reserved_cores or ()]
            things += [("device", one) for device in task.devices or () for one in device.device_ids or ()]
        for thing in things:
            if thing in owned:
                raise InvariantViolation(
                    f"{thing[0]} {thing[1]} of node {node_id} has two owners at {index}: {owned[thing]} and "
                    f"{allocation.id}",
                    node_id, owned[thing], allocation.id,
                )  # fmt: skip
            owned[thing] = allocation.id
    has, kept = node.node_resources, node.reserved_resources
    for what, used, room in (
        ("MHz", cpu, has.cpu.cpu_shares - (kept.cpu.cpu_shares if kept is not None else 0)),
        ("MB of memory", memory, has.memory.memory_mb - (kept.memory.memory_mb if kept is not None else 0)),
        ("MB of disk", disk, has.disk.disk_mb - (kept.disk.disk_mb if kept is not None else 0)),
    ):
        if used > room:
            raise InvariantViolation(
                f"node {node_id} ({node.name}) is over-committed at {index}: {used} of {room} {what} by {len(here)} "
                "allocations",
                node_id, *(allocation.id for allocation in here),
            )  # fmt: skip


def compute_peak_usage(resources: AllocatedResources, get_amount: Callable[[AllocatedTaskResources], int]) -> int:
    """Of what its tasks have, that of those which run at the same time: before the main ones, with them, after them."""
    before = beside = after = 0
    for name, task in (resources.tasks or {}).items():
        lifecycle = (resources.task_lifecycles or {}).get(name)
        hook = lifecycle.hook if lifecycle is not None else ""
        is_sidecar = lifecycle is not None and lifecycle.sidecar
        before += get_amount(task) if hook == LifecycleHook.PRESTART else 0
        beside += (
            get_amount(task)
            if hook in ("", LifecycleHook.POSTSTART) or (hook == LifecycleHook.PRESTART and is_sidecar)
            else 0
        )
        after += get_amount(task) if hook == LifecycleHook.POSTSTOP else 0
    return max(before, beside, after)


def is_using_resources(allocation: Allocation) -> bool:
    """Until it is over on the node's side, whatever servers want of it."""
    return allocation.client_status not in (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST)


def require_job_version(replica: Replica, job: Job, index: int) -> None:
    """The version of a job is kept, and says the same, also in its indexes; its summary is there."""
    version = replica.get(JOB_VERSIONS, job.namespace, job.id, f"{job.version:020d}")
    if version is None:
        raise InvariantViolation(f"version {job.version} of job {job.id} is not kept at {index}", job.id)
    is_same = (version.create_index, version.job_modify_index) == (job.create_index, job.job_modify_index)
    if not is_same or version.meta != job.meta or version.stop != job.stop:
        raise InvariantViolation(
            f"version {job.version} of job {job.id} says something else than the job at {index}", job.id
        )
    if replica.get(JOB_SUMMARIES, job.namespace, job.id) is None:
        raise InvariantViolation(f"job {job.id} has no summary at {index}", job.id)


def find_canary_deployment_id(replica: Replica, allocation: Allocation) -> str:
    """The deployment that it was a canary of; empty: of none."""
    deployment = replica.get(DEPLOYMENTS, allocation.deployment_id)
    groups = (deployment.task_groups or {}).values() if deployment is not None else ()
    status = allocation.deployment_status
    # In the write that places it the deployment may not list it yet.
    is_canary = status is not None and status.canary
    is_listed = any(allocation.id in (group.placed_canaries or ()) for group in groups)
    return allocation.deployment_id if is_canary or is_listed else ""


def is_awaiting_promotion(replica: Replica, canary: Allocation) -> bool:
    """Whether its deployment still waits for a promotion."""
    deployment = replica.get(DEPLOYMENTS, canary.deployment_id)
    return deployment is not None and deployment.is_active and deployment.is_awaiting_promotion


def require_unique_slot(replica: Replica, placed: Allocation) -> None:
    """A slot of a job is filled once; a canary has the name of one that it is to replace, until that is stopped."""
    trial = find_canary_deployment_id(replica, placed)
    per_node = _type_of(replica, placed) in (JobType.SYSTEM, JobType.SYSBATCH)
    for other in replica.list_by_index(ALLOCATIONS_OF_JOB, placed.namespace, placed.job_id):
        if other.id == placed.id or other.name != placed.name or not is_desired_running(other):
            continue
        if per_node and other.node_id != placed.node_id:
            continue
        if (
            find_canary_deployment_id(replica, other) != trial
            or _takes_over(replica, placed)
            or _stands_in(replica, placed, other)
        ):
            continue
        raise InvariantViolation(
            f"{placed.name} is placed twice: {other.id} on {other.node_name} and {placed.id} on {placed.node_name}",
            placed.job_id, other.id, placed.id,
        )  # fmt: skip


def _takes_over(replica: Replica, placed: Allocation) -> bool:
    """It stands where another stood that was stopped for it, so there are no more of its name than there were.

    There may be two of one name: a canary was promoted, and before the one whose name it has was stopped, the job moved
    on. They get names of their own as they are exchanged.
    """
    previous = replica.get(ALLOCATIONS, placed.previous_allocation)
    return (
        previous is not None
        and (previous.name, previous.next_allocation) == (placed.name, placed.id)
        and previous.desired_description == UPDATE_STOP_DESCRIPTION
    )


def _stands_in(replica: Replica, placed: Allocation, other: Allocation) -> bool:
    """Return whether `placed` follows `other` in any number of steps, and contact with `other` is lost.

    When the node of `other` reconnects, the scheduler stops one of the two.
    """
    if other.client_status is not ClientStatus.UNKNOWN:
        return False
    before: Allocation | None = placed
    while before is not None:
        if other.next_allocation == before.id:
            return True
        before = replica.get(ALLOCATIONS, before.previous_allocation)
    return False


def _type_of(replica: Replica, allocation: Allocation) -> str:
    version = replica.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, f"{allocation.job_version:020d}")
    return version.type if version is not None else ""


def is_desired_running(allocation: Allocation) -> bool:
    return allocation.desired_status is DesiredStatus.RUN and is_using_resources(allocation)


# -- the whole state -----------------------------------------------------------------------------------------------


def require_consistent_state(history: RecordHistory) -> None:
    """All that holds of one state at any moment, over all records."""
    replica = history.replica
    for node in replica.iter_all(NODES):
        require_capacity(replica, node.id, replica.index)
    for job in replica.iter_all(JOBS):
        require_job_version(replica, job, replica.index)
    for table, machines in STATE_MACHINES_BY_TABLE.items():
        for record in replica.iter_all(replica.tables[table]):
            for machine, field in machines:
                state = getattr(record, field)
                if state not in machine.terminal_states and machine.find_ownership(state) is None:
                    raise InvariantViolation(f"{machine.name} is {state}, and nobody moves it on from there")


def require_same_records(history: RecordHistory, replica: Replica, name: str, *, is_deep: bool) -> None:
    """A replica shows what stood in the log at its index."""
    index = replica.index
    for table in replica.tables.values():
        rows = replica.get_table_records(table)
        seen = 0
        for key in history.list_keys(table):
            expected, actual = history.get_record(table, key, index), rows.records.get(key)
            seen += actual is not None
            same = expected == actual if is_deep else _version(expected) == _version(actual)
            if not same:
                raise InvariantViolation(
                    f"{name} at {index} holds {table.name} {key!r} of {_version(actual)}; the log has "
                    f"{_version(expected)}",
                    name, *key.split("\0"),
                )  # fmt: skip
        if seen != len(rows.records):
            raise InvariantViolation(f"{name} at {index} holds records of {table.name} that the log never had", name)
        if index and rows.last_change != history.find_last_table_change(table, index):
            raise InvariantViolation(
                f"{name} at {index} says that {table.name} changed last at {rows.last_change}; it was "
                f"{history.find_last_table_change(table, index)}",
                name,
            )


def _version(record: Any) -> int:
    return record.modify_index if record is not None else 0
