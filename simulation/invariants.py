"""Invariants of single batches and of the whole state.

Each check is computed directly from the records, and not with the product's own functions, so that both cannot be wrong in
the same way.
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
    HOST_VOLUMES,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
    LEADER,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    QUOTAS,
    VARIABLES,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.resources import AllocatedResources, AllocatedTaskResources
from wharf.contract.model.jobs.groups import LifecycleHook
from wharf.contract.model.jobs.job import Job, JobStatus, JobType
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
"""Writes that only a leader commits have one of these causes or one of these kinds."""

UPDATE_STOP_DESCRIPTION: Final = "alloc is being updated due to job update"
"""The description of an allocation that was stopped to be replaced by the next version."""

Transition = tuple[str, str | None, str]


class BatchInvariants:
    """The checks of each batch. `transitions` counts the state transitions that happened."""

    def __init__(self, history: RecordHistory) -> None:
        self.transitions: dict[Transition, int] = {}
        self._history = history
        self._write_ids: dict[str, int] = {}
        history.write_checks.append(self.check_leader_condition)
        history.batch_checks += [
            self.check_unique_write_id,
            self.check_leader_commit,
            self.check_state_transitions,
            self.check_node_capacity,
            self.check_job_versions,
            self.check_unique_placements,
            self.check_parents,
        ]

    @property
    def _replica(self) -> Replica:
        return self._history.replica

    def check_leader_condition(self, write: EncodedWrite, process: Process | None) -> None:
        """Require that each leader write has a condition on the leader record."""
        if _is_leader_write(write) and not any(condition.table == LEADER.name for condition in write.conditions):
            name = process.name if process is not None else "an unknown process"
            raise InvariantViolation(f"{name} requested {write.kind} without the condition on the leader record", name)

    def check_unique_write_id(self, observed: ObservedBatch) -> None:
        """Require that each write is committed once."""
        batch = observed.batch
        if batch.id and batch.id in self._write_ids:
            raise InvariantViolation(
                f"write {batch.id} was committed at {self._write_ids[batch.id]} and again at {batch.index}"
            )
        self._write_ids[batch.id] = batch.index

    def check_leader_commit(self, observed: ObservedBatch) -> None:
        """Require that only the elected leader commits leader writes."""
        if observed.write is None or observed.process is None or not _is_leader_write(observed.write):
            return
        leader = self._replica.get(LEADER)
        writer = observed.process.machine
        if leader is None or leader.member_id != writer:
            raise InvariantViolation(
                f"{observed.process.name} committed {observed.batch.kind} at {observed.batch.index} as leader; the leader is "
                f"{leader.member_id if leader is not None else 'not elected'}",
                observed.process.name,
            )

    def check_state_transitions(self, observed: ObservedBatch) -> None:
        """Require that records change their state only as their state machines allow."""
        for changed in observed.changes:
            if changed.new is None:
                continue
            for machine, field in STATE_MACHINES_BY_TABLE.get(changed.table, ()):
                old = getattr(changed.old, field) if changed.old is not None else None
                new = getattr(changed.new, field)
                if not machine.allows(old, new):
                    raise InvariantViolation(
                        f"{machine.name} {_format_key(changed)} went from {old} to {new} at {observed.batch.index}",
                        *_split_key(changed),
                    )
                if old is not new:
                    step = (machine.name, old.value if old is not None else None, new.value)
                    self.transitions[step] = self.transitions.get(step, 0) + 1

    def check_node_capacity(self, observed: ObservedBatch) -> None:
        """Require that the allocations of each changed node fit on it."""
        nodes: dict[str, None] = {}
        for changed in observed.changes:
            if changed.new is None:
                continue
            if changed.table == ALLOCATIONS.name:
                nodes[changed.new.node_id] = None
            elif changed.table == NODES.name:
                nodes[changed.key] = None
        for node_id in nodes:
            require_capacity(self._replica, node_id, observed.batch.index)

    def check_job_versions(self, observed: ObservedBatch) -> None:
        """Require that versions of jobs grow in steps of one, and change together with `JobModifyIndex`."""
        for changed in observed.changes:
            if changed.table != JOBS.name or changed.new is None:
                continue
            job: Job = changed.new
            require_job_version(self._replica, job, observed.batch.index)
            old: Job | None = changed.old
            if old is not None and not old.version <= job.version <= old.version + 1:
                raise InvariantViolation(f"job {job.id} went from version {old.version} to {job.version}", job.id)
            if old is not None and old.version == job.version and old.job_modify_index != job.job_modify_index:
                raise InvariantViolation(
                    f"job {job.id} changed its JobModifyIndex, but not its version {job.version}", job.id
                )

    def check_unique_placements(self, observed: ObservedBatch) -> None:
        for changed in observed.changes:
            if changed.table == ALLOCATIONS.name and changed.old is None and changed.new is not None:
                require_unique_slot(self._replica, changed.new)

    def check_parents(self, observed: ObservedBatch) -> None:
        """Require that no record loses its namespace, quota or node pool, and that none is created without it."""
        for changed in observed.changes:
            if changed.new is None:
                require_no_children(self._replica, changed.table, changed.key, observed.batch.index)
            elif changed.table == NAMESPACES.name and changed.new.quota:
                if self._replica.get(QUOTAS, changed.new.quota) is None:
                    raise InvariantViolation(
                        f"namespace {changed.key} has the missing quota {changed.new.quota} at {observed.batch.index}",
                        changed.key,
                    )
            elif (
                changed.table in (VARIABLES.name, HOST_VOLUMES.name)
                and self._replica.get(NAMESPACES, changed.new.namespace) is None
            ):
                raise InvariantViolation(
                    f"{changed.table} {_format_key(changed)} has no namespace at {observed.batch.index}",
                    *_split_key(changed),
                )


def _is_leader_write(write: EncodedWrite) -> bool:
    return write.cause.kind in LEADER_WRITE_CAUSES or write.kind in LEADER_WRITE_KINDS


def _format_key(changed: ObservedChange) -> str:
    return "/".join(_split_key(changed))


def _split_key(changed: ObservedChange) -> list[str]:
    return changed.key.split("\0")


# -- one record ----------------------------------------------------------------------------------------------------


def require_no_children(replica: Replica, table: str, key: str, index: int) -> None:
    """Require that no live record refers to the record of this key, which was deleted at `index`."""
    children: list[str] = []
    if table == QUOTAS.name:
        children += [f"namespace {each.name}" for each in replica.iter_all(NAMESPACES) if each.quota == key]
    if table == NAMESPACES.name:
        children += [f"variable {each.path}" for each in replica.iter_all(VARIABLES) if each.namespace == key]
        children += [f"volume {each.id}" for each in replica.iter_all(HOST_VOLUMES) if each.namespace == key]
    if table in (NAMESPACES.name, NODE_POOLS.name):
        field = "namespace" if table == NAMESPACES.name else "node_pool"
        children += [
            f"job {each.id}"
            for each in replica.iter_all(JOBS)
            if getattr(each, field) == key and each.status is not JobStatus.DEAD
        ]
    if table == NODE_POOLS.name:
        children += [f"node {each.id}" for each in replica.iter_all(NODES) if each.node_pool == key]
    if children:
        raise InvariantViolation(f"{table} {key} was deleted at {index} and is in use: {', '.join(children)}", key)


def require_capacity(replica: Replica, node_id: str, index: int) -> None:
    """Require that the allocations of a node fit on it, and that no port, core or device has two owners."""
    node: Node | None = replica.get(NODES, node_id)
    if node is None or node.node_resources is None:
        return
    allocations = [a for a in replica.list_by_index(ALLOCATIONS_ON_NODE, node_id) if is_using_resources(a)]
    cpu = memory = disk = 0
    owned: dict[tuple[str, object], str] = {}
    for allocation in allocations:
        resources = allocation.allocated_resources
        if resources is None:
            continue
        disk += resources.shared.disk_mb
        exclusive: list[tuple[str, object]] = [
            ("port", (port.host_ip, port.value)) for port in resources.shared.ports or () if not port.ignore_collision
        ]
        cpu += compute_peak_usage(resources, lambda task: task.cpu.cpu_shares)
        memory += compute_peak_usage(resources, lambda task: task.memory.memory_mb)
        for task in (resources.tasks or {}).values():
            exclusive += [("core", core) for core in task.cpu.reserved_cores or ()]
            exclusive += [
                ("device", device_id) for device in task.devices or () for device_id in device.device_ids or ()
            ]
        for item in exclusive:
            if item in owned:
                raise InvariantViolation(
                    f"{item[0]} {item[1]} of node {node_id} has two owners at {index}: {owned[item]} and "
                    f"{allocation.id}",
                    node_id, owned[item], allocation.id,
                )  # fmt: skip
            owned[item] = allocation.id
    total, reserved = node.node_resources, node.reserved_resources
    for unit, used, capacity in (
        ("MHz", cpu, total.cpu.cpu_shares - (reserved.cpu.cpu_shares if reserved is not None else 0)),
        ("MB of memory", memory, total.memory.memory_mb - (reserved.memory.memory_mb if reserved is not None else 0)),
        ("MB of disk", disk, total.disk.disk_mb - (reserved.disk.disk_mb if reserved is not None else 0)),
    ):
        if used > capacity:
            raise InvariantViolation(
                f"node {node_id} ({node.name}) is over-committed at {index}: {used} of {capacity} {unit} by {len(allocations)} "
                "allocations",
                node_id, *(allocation.id for allocation in allocations),
            )  # fmt: skip


def compute_peak_usage(resources: AllocatedResources, get_amount: Callable[[AllocatedTaskResources], int]) -> int:
    """Return the largest amount that tasks use at the same time: before, beside or after the main tasks."""
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
    """Return whether the allocation may still run on its node, also if its desired status is stop."""
    return allocation.client_status not in (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST)


def require_job_version(replica: Replica, job: Job, index: int) -> None:
    """Require that the current version of a job is stored with the same content and indexes, and that a summary exists."""
    version = replica.get(JOB_VERSIONS, job.namespace, job.id, f"{job.version:020d}")
    if version is None:
        raise InvariantViolation(f"version {job.version} of job {job.id} is not stored at {index}", job.id)
    is_same = (version.create_index, version.job_modify_index) == (job.create_index, job.job_modify_index)
    if not is_same or version.meta != job.meta or version.stop != job.stop:
        raise InvariantViolation(f"version {job.version} of job {job.id} differs from the job at {index}", job.id)
    if replica.get(JOB_SUMMARIES, job.namespace, job.id) is None:
        raise InvariantViolation(f"job {job.id} has no summary at {index}", job.id)


def find_canary_deployment_id(replica: Replica, allocation: Allocation) -> str:
    """Return the id of the deployment whose canary the allocation was, or an empty string."""
    deployment = replica.get(DEPLOYMENTS, allocation.deployment_id)
    groups = (deployment.task_groups or {}).values() if deployment is not None else ()
    status = allocation.deployment_status
    # The write that places a canary may not update the deployment yet.
    is_canary = status is not None and status.canary
    is_listed = any(allocation.id in (group.placed_canaries or ()) for group in groups)
    return allocation.deployment_id if is_canary or is_listed else ""


def is_awaiting_promotion(replica: Replica, canary: Allocation) -> bool:
    """Return whether the deployment of the canary still waits for a promotion."""
    deployment = replica.get(DEPLOYMENTS, canary.deployment_id)
    return deployment is not None and deployment.is_active and deployment.is_awaiting_promotion


def require_unique_slot(replica: Replica, placed: Allocation) -> None:
    """Require that no other running allocation has the name of a placed one, except for canaries and replacements."""
    canary_deployment_id = find_canary_deployment_id(replica, placed)
    per_node = _get_job_type(replica, placed) in (JobType.SYSTEM, JobType.SYSBATCH)
    for existing in replica.list_by_index(ALLOCATIONS_OF_JOB, placed.namespace, placed.job_id):
        if existing.id == placed.id or existing.name != placed.name or not is_desired_running(existing):
            continue
        if per_node and existing.node_id != placed.node_id:
            continue
        if (
            find_canary_deployment_id(replica, existing) != canary_deployment_id
            or _replaces_same_name(replica, placed)
            or _replaces_unknown(replica, placed, existing)
        ):
            continue
        raise InvariantViolation(
            f"{placed.name} is placed twice: {existing.id} on {existing.node_name} and {placed.id} on {placed.node_name}",
            placed.job_id, existing.id, placed.id,
        )  # fmt: skip


def _replaces_same_name(replica: Replica, placed: Allocation) -> bool:
    """Return whether `placed` replaces a stopped allocation of the same name, so that their number stays the same.

    Two allocations may have one name: a canary was promoted, and the job changed again before the older allocation was
    stopped. Their replacements get different names later.
    """
    previous = replica.get(ALLOCATIONS, placed.previous_allocation)
    return (
        previous is not None
        and (previous.name, previous.next_allocation) == (placed.name, placed.id)
        and previous.desired_description == UPDATE_STOP_DESCRIPTION
    )


def _replaces_unknown(replica: Replica, placed: Allocation, existing: Allocation) -> bool:
    """Return whether `placed` follows `existing` in any number of steps, and contact with `existing` is lost.

    When the node of `existing` reconnects, the scheduler stops one of the two.
    """
    if existing.client_status is not ClientStatus.UNKNOWN:
        return False
    before: Allocation | None = placed
    while before is not None:
        if existing.next_allocation == before.id:
            return True
        before = replica.get(ALLOCATIONS, before.previous_allocation)
    return False


def _get_job_type(replica: Replica, allocation: Allocation) -> str:
    version = replica.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, f"{allocation.job_version:020d}")
    return version.type if version is not None else ""


def is_desired_running(allocation: Allocation) -> bool:
    return allocation.desired_status is DesiredStatus.RUN and is_using_resources(allocation)


# -- the whole state -----------------------------------------------------------------------------------------------


def require_consistent_state(history: RecordHistory) -> None:
    """Check all records of the newest state, each on its own."""
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
                    raise InvariantViolation(f"{machine.name} is {state}, and no component may change that state")


def require_same_records(history: RecordHistory, replica: Replica, name: str, *, is_deep: bool) -> None:
    """Require that a replica has exactly the records of the log at its index. `is_deep`: compare whole records."""
    index = replica.index
    for table in replica.tables.values():
        rows = replica.get_table_records(table)
        record_count = 0
        for key in history.list_keys(table):
            expected, actual = history.get_record(table, key, index), rows.records.get(key)
            record_count += actual is not None
            is_same = expected == actual if is_deep else _get_version(expected) == _get_version(actual)
            if not is_same:
                raise InvariantViolation(
                    f"{name} at {index} has version {_get_version(actual)} of {table.name} {key!r}; the log has "
                    f"version {_get_version(expected)}",
                    name, *key.split("\0"),
                )  # fmt: skip
        if record_count != len(rows.records):
            raise InvariantViolation(f"{name} at {index} has records of {table.name} that were never in the log", name)
        if index and rows.last_change != history.find_last_table_change(table, index):
            raise InvariantViolation(
                f"{name} at {index} reports that {table.name} changed last at {rows.last_change}; in the log it changed "
                f"last at {history.find_last_table_change(table, index)}",
                name,
            )


def _get_version(record: Any) -> int:
    return record.modify_index if record is not None else 0
