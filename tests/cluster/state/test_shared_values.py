"""Recurring values of related records are stored in memory once, without a visible difference."""

import json

import pytest
from msgspec.structs import replace

from tests.cluster.state.inventory import make_write
from wharf.cluster.state import Replica
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.tables import ALL_TABLES, EVALUATIONS, JOB_VERSIONS, JOBS
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.log import WRITE_INDEX, Batch, LogPosition, PutRecord, StoredRecord, join_key


def make_batch(index: int, *changes: PutRecord) -> Batch:
    logged = Replica(ALL_TABLES).encode_write(make_write(*changes), write_id=f"write-{index}")
    return Batch(index, logged.id, logged.kind, logged.cause, logged.changes)


def make_job(name: str, *, count: int = 1, version: int = 0) -> Job:
    return Job(id=name, name=name, task_groups=(TaskGroup(name=f"group of {name}", count=count),), version=version)


def stored(replica: Replica, name: str) -> Job:
    job = replica.get(JOBS, "default", name)
    assert job is not None
    return job


def version_of(replica: Replica, name: str, version: int = 0) -> Job:
    found = replica.get(JOB_VERSIONS, "default", name, version)
    assert found is not None
    return found


def test_a_job_and_its_version_share_their_groups() -> None:
    replica, job = Replica(ALL_TABLES), make_job("web")
    replica.apply_batch(make_batch(1, JOBS.build_put(job), JOB_VERSIONS.build_put(job)))

    assert version_of(replica, "web").task_groups is stored(replica, "web").task_groups


def test_a_record_written_under_two_keys_in_one_batch_is_decoded_once() -> None:
    replica, job = Replica(ALL_TABLES), replace(make_job("web"), create_index=WRITE_INDEX, job_modify_index=WRITE_INDEX)
    replica.apply_batch(make_batch(7, JOBS.build_put(job), JOB_VERSIONS.build_put(job)))

    assert version_of(replica, "web") is stored(replica, "web")
    assert (stored(replica, "web").create_index, stored(replica, "web").modify_index) == (7, 7)


def test_a_job_whose_status_changes_keeps_sharing_its_groups() -> None:
    replica, job = Replica(ALL_TABLES), make_job("web")
    replica.apply_batch(make_batch(1, JOBS.build_put(job), JOB_VERSIONS.build_put(job)))
    replica.apply_batch(make_batch(2, JOBS.build_put(replace(job, status=JobStatus.RUNNING))))

    assert stored(replica, "web").status is JobStatus.RUNNING
    assert version_of(replica, "web").status is JobStatus.PENDING
    assert stored(replica, "web").task_groups is version_of(replica, "web").task_groups


def test_a_changed_version_has_groups_of_its_own() -> None:
    replica, job, next_job = Replica(ALL_TABLES), make_job("web"), make_job("web", count=2, version=1)
    replica.apply_batch(make_batch(1, JOBS.build_put(job), JOB_VERSIONS.build_put(job)))
    replica.apply_batch(make_batch(2, JOBS.build_put(next_job), JOB_VERSIONS.build_put(next_job)))

    assert version_of(replica, "web", 0).task_groups == job.task_groups
    assert version_of(replica, "web", 1).task_groups == next_job.task_groups
    assert stored(replica, "web").task_groups is version_of(replica, "web", 1).task_groups


def test_children_of_a_job_share_their_groups() -> None:
    replica = Replica(ALL_TABLES)
    for number in range(3):
        child = replace(make_job("parent"), id=f"parent/dispatch-{number}", parent_id="parent")
        replica.apply_batch(make_batch(number + 1, JOBS.build_put(child), JOB_VERSIONS.build_put(child)))

    groups = [job.task_groups for job in replica.iter_all(JOBS)]
    assert len({id(each) for each in groups}) == 1
    assert len(groups) == 3


@pytest.mark.parametrize("later", [True, 1.0, {"b": 1, "a": 1}])
def test_values_that_only_python_considers_equal_are_not_shared(later: object) -> None:
    earlier: object = {"a": 1, "b": 1} if isinstance(later, dict) else 1
    assert earlier == later
    replica = Replica(ALL_TABLES)
    for index, (name, value) in enumerate((("one", earlier), ("other", later), ("other", earlier), ("other", later))):
        groups = (TaskGroup(name="web", tasks=(Task(name="web", driver="exec", config={"value": value}),)),)
        replica.apply_batch(make_batch(index + 1, JOBS.build_put(Job(id=name, name=name, task_groups=groups))))

        (task,) = stored(replica, name).groups[0].tasks or ()
        assert json.dumps(task.config) == json.dumps({"value": value})


def test_a_loaded_state_shares_values_like_an_applied_one() -> None:
    replica = Replica(ALL_TABLES)
    jobs = [replace(make_job(name), create_index=1) for name in ("web", "db")]
    rows = [
        StoredRecord("job_versions", join_key("default", job.id, f"{0:020d}"), 1, encode_record(JOB_VERSIONS, job))
        for job in jobs
    ] + [StoredRecord("jobs", join_key("default", job.id), 2, encode_record(JOBS, job)) for job in jobs]
    replica.load_state(rows, LogPosition(index=2, epoch=1, epoch_since=1, last_changes={}))

    for name in ("web", "db"):
        assert stored(replica, name).task_groups is version_of(replica, name).task_groups
        assert stored(replica, name).task_groups == make_job(name).task_groups


def test_evaluations_that_fail_for_the_same_reason_share_their_metrics() -> None:
    replica = Replica(ALL_TABLES)
    for number, evaluated in enumerate((7, 7, 8)):
        evaluation = Evaluation(
            id=f"0000000{number}",
            type=SchedulerType.SERVICE,
            triggered_by=EvaluationTrigger.JOB_REGISTER,
            status=EvaluationStatus.BLOCKED,
            failed_tg_allocs={"web": AllocMetric(nodes_evaluated=evaluated)},
            create_index=-1,
        )
        replica.apply_batch(make_batch(number + 1, EVALUATIONS.build_put(evaluation)))

    first, second, third = (each.failed_tg_allocs for each in replica.iter_all(EVALUATIONS))
    assert first is second
    assert third == {"web": AllocMetric(nodes_evaluated=8)}
