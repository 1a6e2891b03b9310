"""Adopted records: the process that wrote a record uses it undecoded, and it equals what others decode."""

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_job_settings
from wharf.cluster.state import BatchApplication, Replica, Table
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.tables import (
    ALL_TABLES,
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
    NAMESPACES,
    NODE_PLACEMENTS,
)
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocationState,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
    RescheduleEvent,
    RescheduleTracker,
)
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.cluster import NodeCapacityVersion
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.job import GroupSummary, Job, JobStatus, JobSummary
from wharf.contract.model.jobs.plan import DesiredUpdates, PlanAnnotations
from wharf.contract.model.log import WRITE_INDEX, Batch, Cause, CauseKind, DeleteRecord, PutRecord, Write
from wharf.contract.model.namespaces import Namespace

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
RESOURCES = AllocatedResources(
    tasks={"web": AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=100), memory=AllocatedMemory(memory_mb=64))},
    shared=AllocatedSharedResources(disk_mb=10),
)
PLACED = Allocation(
    id="a1",
    namespace="default",
    eval_id="e1",
    name="shop.web[0]",
    node_id="n1",
    job_id="shop",
    task_group="web",
    allocated_resources=RESOURCES,
    metrics=AllocMetric(nodes_evaluated=3),
    desired_status=DesiredStatus.RUN,
    desired_transition=DesiredTransition(),
    client_status=ClientStatus.PENDING,
    create_index=WRITE_INDEX,
    alloc_modify_index=WRITE_INDEX,
)
FORMS: dict[str, dict[str, Any]] = {
    "as a plan places it": {},
    "in a deployment": {"deployment_id": "d1", "deployment_status": AllocDeploymentStatus(modify_index=WRITE_INDEX)},
    "judged by its node": {
        "deployment_status": AllocDeploymentStatus(healthy=True, timestamp=NOON, modify_index=7),
        "create_index": 3,
    },
    "with the states of its tasks": {
        "task_states": {"web": TaskState(state=TaskStatus.RUNNING)},
        "client_status": ClientStatus.RUNNING,
    },
    "once out of contact": {"alloc_states": (AllocationState(value="unknown", time=NOON),)},
    "placed again": {"reschedule_tracker": RescheduleTracker(events=(RescheduleEvent(prev_alloc_id="a0"),))},
    "without resources": {"allocated_resources": None, "metrics": None, "desired_transition": None},
    "after it pushed others aside": {"preempted_allocations": ("a8", "a9")},
}


TABLES: dict[type, Table[Any]] = {
    Allocation: ALLOCATIONS,
    NodeCapacityVersion: NODE_PLACEMENTS,
    Job: JOBS,
    JobSummary: JOB_SUMMARIES,
    Evaluation: EVALUATIONS,
    Deployment: DEPLOYMENTS,
}


def apply_and_read(record: Any, *, is_own: bool, replica: Replica | None = None) -> Any:
    """Return the record after its batch was applied, adopted by its writer or decoded by others."""
    replica = Replica(ALL_TABLES) if replica is None else replica
    table = TABLES[type(record)]
    apply_write(replica, table.build_put(record), is_own=is_own)
    return replica.get(table, table.get_key(record))


def apply_write(replica: Replica, *changes: PutRecord, is_own: bool) -> None:
    """Apply the write as the process that wrote it, or as another one."""
    write = Write("plan", Cause(CauseKind.EVALUATION, "e1"), changes)
    coded = replica.encode_write(write, write_id="w1")
    batch = Batch(replica.index + 9, coded.id, coded.kind, coded.cause, coded.changes)
    applying = BatchApplication(replica, batch, replica.collect_adoptable(write) if is_own else None)
    for _ in applying.decode_in_steps():
        pass
    applying.apply_changes()


@pytest.mark.parametrize("form", FORMS)
def test_an_adopted_allocation_equals_the_decoded_one(form: str) -> None:
    record = replace(PLACED, **FORMS[form])

    own, theirs = apply_and_read(record, is_own=True), apply_and_read(record, is_own=False)

    assert repr(theirs) == repr(own)
    assert encode_record(ALLOCATIONS, theirs) == encode_record(ALLOCATIONS, own)


def test_an_adopted_node_capacity_version_equals_the_decoded_one() -> None:
    record = NodeCapacityVersion(node_id="n1")

    assert repr(apply_and_read(record, is_own=False)) == repr(apply_and_read(record, is_own=True))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(
            canonicalize_job(
                a_job("shop", a_group("web", a_task(config={"args": ["a", 1, 1.0, True, None]}))), some_job_settings()
            ),
            id="a job",
        ),
        pytest.param(
            JobSummary(namespace="default", job_id="shop", summary={"web": GroupSummary(queued=1)}), id="a summary"
        ),
        pytest.param(
            Evaluation(
                id="e1",
                job_id="shop",
                type=SchedulerType.SERVICE,
                triggered_by=EvaluationTrigger.JOB_REGISTER,
                status=EvaluationStatus.COMPLETE,
                failed_tg_allocs={"web": AllocMetric(nodes_available={"dc1": 2})},
                queued_allocations={"web": 1},
                plan_annotations=PlanAnnotations(desired_tg_updates={"web": DesiredUpdates(place=1)}),
                wait_until=NOON,
                create_index=WRITE_INDEX,
                job_modify_index=WRITE_INDEX,
            ),
            id="an evaluation",
        ),
        pytest.param(
            Deployment(
                id="d1",
                job_id="shop",
                status=DeploymentStatus.RUNNING,
                task_groups={"web": DeploymentGroup(desired_total=2, require_progress_by=NOON)},
                create_index=WRITE_INDEX,
                job_create_index=WRITE_INDEX,
            ),
            id="a deployment",
        ),
    ],
)
def test_what_a_registration_and_its_plan_write_is_adopted_as_others_decode_it(record: Any) -> None:
    own, theirs = apply_and_read(record, is_own=True), apply_and_read(record, is_own=False)

    assert repr(theirs) == repr(own)
    assert encode_record(TABLES[type(record)], theirs) == encode_record(TABLES[type(record)], own)


def test_an_adopted_job_and_its_version_are_one_record() -> None:
    replica, job = Replica(ALL_TABLES), canonicalize_job(a_job("shop"), some_job_settings())

    apply_write(replica, JOBS.build_put(job), JOB_VERSIONS.build_put(job), is_own=True)

    assert replica.get(JOBS, "default", "shop") is replica.get(JOB_VERSIONS, "default", "shop", 0)


def test_an_adopted_job_whose_status_changed_keeps_its_groups() -> None:
    replica, job = Replica(ALL_TABLES), canonicalize_job(a_job("shop"), some_job_settings())
    apply_write(replica, JOBS.build_put(job), is_own=True)
    stored = replica.get(JOBS, "default", "shop")
    assert stored is not None

    changed = apply_and_read(replace(stored, status=JobStatus.RUNNING), is_own=True, replica=replica)

    assert changed.task_groups is stored.task_groups


def test_adopting_a_record_does_not_change_the_original() -> None:
    status = AllocDeploymentStatus(modify_index=WRITE_INDEX)
    record = replace(PLACED, deployment_status=status)

    apply_and_read(record, is_own=True)

    assert (record.create_index, record.modify_index, status.modify_index) == (WRITE_INDEX, 0, WRITE_INDEX)


def test_adopted_records_share_values_with_decoded_ones() -> None:
    replica = Replica(ALL_TABLES)
    theirs = apply_and_read(PLACED, is_own=False, replica=replica)

    own = apply_and_read(replace(PLACED, id="a2"), is_own=True, replica=replica)

    assert own.allocated_resources is theirs.allocated_resources
    assert own.metrics is theirs.metrics


def test_only_written_records_of_adopted_tables_are_adopted() -> None:
    capacity = NodeCapacityVersion(node_id="n1")
    changes: list[PutRecord | DeleteRecord] = [
        ALLOCATIONS.build_put(PLACED),
        ALLOCATIONS.build_delete("a2"),
        NODE_PLACEMENTS.build_put(capacity),
        NAMESPACES.build_put(Namespace(name="team")),
    ]

    adopted = Replica(ALL_TABLES).collect_adoptable(Write("plan", Cause(CauseKind.EVALUATION, "e1"), changes))

    assert adopted == {(ALLOCATIONS.name, "a1"): PLACED, (NODE_PLACEMENTS.name, "n1"): capacity}


def test_an_adopted_record_under_two_keys_is_not_mixed_up_with_a_record_in_between() -> None:
    replica = Replica(ALL_TABLES)
    job = replace(canonicalize_job(a_job("own"), some_job_settings()), create_index=WRITE_INDEX)
    own = replace(apply_and_read(job, is_own=False), create_index=WRITE_INDEX, modify_index=WRITE_INDEX)
    other = replace(own, id="other", name="other")
    write = Write("plan", Cause(CauseKind.EVALUATION, "e1"), [JOBS.build_put(own), JOB_VERSIONS.build_put(own)])
    coded = replica.encode_write(write, write_id="w1")
    between = replica.encode_write(replace(write, changes=[JOBS.build_put(other)]), write_id="w2")
    first, second = coded.changes
    batch = Batch(9, coded.id, coded.kind, coded.cause, [first, *between.changes, second])
    adoptable = {(first.table, first.key): own, (second.table, second.key): own}

    applying = BatchApplication(replica, batch, adoptable)
    for _ in applying.decode_in_steps():
        pass
    applying.apply_changes()

    assert [job.id for job in replica.iter_all(JOBS)] == ["other", "own"]
    assert [job.id for job in replica.iter_all(JOB_VERSIONS)] == ["own"]
