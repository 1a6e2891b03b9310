"""What recurs in related records lies in memory once, and nobody sees a difference."""

import json

import pytest
from msgspec.structs import replace

from tests.cluster.state.inventory import a_write
from wharf.cluster.state import Replica
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.tables import ALL_TABLES, EVALUATIONS, JOB_VERSIONS, JOBS
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.log import WRITE_INDEX, Batch, LogPosition, PutRecord, StoredRecord, join_key


def a_batch(index: int, *changes: PutRecord) -> Batch:
    logged = Replica(ALL_TABLES).encode_write(a_write(*changes), write_id=f"write-{index}")
    return Batch(index, logged.id, logged.kind, logged.cause, logged.changes)


def a_job(name: str, *, count: int = 1, version: int = 0) -> Job:
    return Job(id=name, name=name, task_groups=(TaskGroup(name=f"group of {name}", count=count),), version=version)


def stored(replica: Replica, name: str) -> Job:
    job = replica.get(JOBS, "default", name)
    assert job is not None
    return job


def version_of(replica: Replica, name: str, version: int = 0) -> Job:
    found = replica.get(JOB_VERSIONS, "default", name, version)
    assert found is not None
    return found


def test_a_job_and_its_version_hold_the_same_groups() -> None:
    replica, job = Replica(ALL_TABLES), a_job("web")
    replica.apply_batch(a_batch(1, JOBS.build_put(job), JOB_VERSIONS.build_put(job)))

    assert version_of(replica, "web").task_groups is stored(replica, "web").task_groups


def test_what_is_written_twice_in_one_batch_is_one_record_under_two_keys() -> None:
    replica, job = Replica(ALL_TABLES), replace(a_job("web"), create_index=WRITE_INDEX, job_modify_index=WRITE_INDEX)
    replica.apply_batch(a_batch(7, JOBS.build_put(job), JOB_VERSIONS.build_put(job)))

    assert version_of(replica, "web") is stored(replica, "web")
    assert (stored(replica, "web").create_index, stored(replica, "web").modify_index) == (7, 7)


def test_a_job_whose_status_changes_keeps_the_groups_that_it_had() -> None:
    replica, job = Replica(ALL_TABLES), a_job("web")
    replica.apply_batch(a_batch(1, JOBS.build_put(job), JOB_VERSIONS.build_put(job)))
    replica.apply_batch(a_batch(2, JOBS.build_put(replace(job, status=JobStatus.RUNNING))))

    assert stored(replica, "web").status is JobStatus.RUNNING
    assert version_of(replica, "web").status is JobStatus.PENDING
    assert stored(replica, "web").task_groups is version_of(replica, "web").task_groups


def test_another_version_has_groups_of_its_own() -> None:
    replica, job, next_job = Replica(ALL_TABLES), a_job("web"), a_job("web", count=2, version=1)
    replica.apply_batch(a_batch(1, JOBS.build_put(job), JOB_VERSIONS.build_put(job)))
    replica.apply_batch(a_batch(2, JOBS.build_put(next_job), JOB_VERSIONS.build_put(next_job)))

    assert version_of(replica, "web", 0).task_groups == job.task_groups
    assert version_of(replica, "web", 1).task_groups == next_job.task_groups
    assert stored(replica, "web").task_groups is version_of(replica, "web", 1).task_groups


def test_siblings_that_come_one_after_another_hold_the_same_groups() -> None:
    replica = Replica(ALL_TABLES)
    for number in range(3):
        child = replace(a_job("parent"), id=f"parent/dispatch-{number}", parent_id="parent")
        replica.apply_batch(a_batch(number + 1, JOBS.build_put(child), JOB_VERSIONS.build_put(child)))

    groups = [job.task_groups for job in replica.iter_all(JOBS)]
    assert len({id(each) for each in groups}) == 1
    assert len(groups) == 3


@pytest.mark.parametrize("later", [True, 1.0, {"b": 1, "a": 1}])
def test_what_python_takes_for_equal_is_not_made_the_same(later: object) -> None:
    earlier: object = {"a": 1, "b": 1} if isinstance(later, dict) else 1
    assert earlier == later
    replica = Replica(ALL_TABLES)
    for index, (name, value) in enumerate((("one", earlier), ("other", later), ("other", earlier), ("other", later))):
        groups = (TaskGroup(name="web", tasks=(Task(name="web", driver="exec", config={"value": value}),)),)
        replica.apply_batch(a_batch(index + 1, JOBS.build_put(Job(id=name, name=name, task_groups=groups))))

        (task,) = stored(replica, name).groups[0].tasks or ()
        assert json.dumps(task.config) == json.dumps({"value": value})


def test_a_state_that_is_loaded_shares_as_one_that_grew() -> None:
    replica = Replica(ALL_TABLES)
    jobs = [replace(a_job(name), create_index=1) for name in ("web", "db")]
    rows = [
        StoredRecord("job_versions", join_key("default", job.id, f"{0:020d}"), 1, encode_record(JOB_VERSIONS, job))
        for job in jobs
    ] + [StoredRecord("jobs", join_key("default", job.id), 2, encode_record(JOBS, job)) for job in jobs]
    replica.load_state(rows, LogPosition(index=2, epoch=1, epoch_since=1, last_changes={}))

    for name in ("web", "db"):
        assert stored(replica, name).task_groups is version_of(replica, name).task_groups
        assert stored(replica, name).task_groups == a_job(name).task_groups


def test_evaluations_that_fail_alike_hold_their_figures_once() -> None:
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
        replica.apply_batch(a_batch(number + 1, EVALUATIONS.build_put(evaluation)))

    first, second, third = (each.failed_tg_allocs for each in replica.iter_all(EVALUATIONS))
    assert first is second
    assert third == {"web": AllocMetric(nodes_evaluated=8)}
