"""Recurring values of related records are stored in memory once, without a visible difference."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cluster.state.inventory import PARCELS, Contents, make_parcel, make_write
from wharf.cluster.state import Replica, Table
from wharf.cluster.state.codec import MAX_SHARED_VALUES, RecordDecoder, encode_record
from wharf.cluster.state.table import SchemaMigration
from wharf.cluster.state.tables import ALL_TABLES, EVALUATIONS, JOB_VERSIONS, JOBS
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.log import (
    WRITE_INDEX,
    Batch,
    Cause,
    CauseKind,
    LogPosition,
    PutRecord,
    StoredRecord,
    join_key,
)


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


def test_evaluations_that_fail_share_metrics_although_others_without_any_come_between() -> None:
    replica = Replica(ALL_TABLES)
    for number in range(4):
        evaluation = Evaluation(
            id=f"0000000{number}",
            type=SchedulerType.SERVICE,
            triggered_by=EvaluationTrigger.JOB_REGISTER,
            status=EvaluationStatus.PENDING if number % 2 else EvaluationStatus.BLOCKED,
            failed_tg_allocs=None if number % 2 else {"web": AllocMetric(nodes_evaluated=7)},
            create_index=-1,
        )
        replica.apply_batch(make_batch(number + 1, EVALUATIONS.build_put(evaluation)))

    first, second, third, fourth = (each.failed_tg_allocs for each in replica.iter_all(EVALUATIONS))
    assert first is third
    assert (first, second, fourth) == ({"web": AllocMetric(nodes_evaluated=7)}, None, None)


def decode_parcel(decoder: RecordDecoder[Any], pieces: int) -> Any:
    contents = Contents(goods="tea", pieces=pieces)
    data = encode_record(PARCELS, make_parcel("p", contents=contents))
    parcel = decoder.decode_record("p", data, 1)
    assert parcel.contents == contents
    return parcel.contents


def test_the_cache_of_shared_values_is_cleared_when_it_is_full() -> None:
    decoder = RecordDecoder(PARCELS)
    first = decode_parcel(decoder, 0)
    for pieces in range(1, MAX_SHARED_VALUES):
        decode_parcel(decoder, pieces)
    assert decode_parcel(decoder, 0) is first

    newest = decode_parcel(decoder, MAX_SHARED_VALUES)

    assert decode_parcel(decoder, 0) is not first
    assert decode_parcel(decoder, MAX_SHARED_VALUES) is newest


def test_a_value_that_left_the_cache_is_not_taken_for_a_cached_one() -> None:
    decoder = RecordDecoder(PARCELS)
    first = decode_parcel(decoder, 0)
    for pieces in range(1, MAX_SHARED_VALUES + 1):
        decode_parcel(decoder, pieces)
    parcel = make_parcel("p", contents=first)

    adopted = decoder.adopt_record(parcel, "p", encode_record(PARCELS, parcel), 1)

    assert adopted.contents == first
    assert adopted.contents is decode_parcel(decoder, 0)


def test_a_record_under_two_keys_is_encoded_once() -> None:
    replica, job = Replica(ALL_TABLES), make_job("web")

    first, second = replica.encode_write(
        make_write(JOBS.build_put(job), JOB_VERSIONS.build_put(job)), write_id="w"
    ).changes

    assert first.data is second.data


def test_a_record_in_two_tables_with_different_schemas_is_encoded_for_each() -> None:
    def same(record: dict[str, Any]) -> dict[str, Any]:
        return record

    newer = Table(
        "newer", PARCELS.record_type, key=("id",), packed_fields=PARCELS.packed_fields,
        shared_fields=PARCELS.shared_fields, migrations=(SchemaMigration(4, same, same),),
    )  # fmt: skip
    replica, parcel = Replica([PARCELS, newer]), make_parcel("p", contents=Contents(goods="tea"))
    puts = [PARCELS.build_put(parcel), newer.build_put(parcel), newer.build_put(make_parcel("q"))]

    changes = replica.encode_write(make_write(*puts), write_id="w").changes

    assert [change.data for change in changes] == [
        encode_record(PARCELS, parcel), encode_record(newer, parcel), encode_record(newer, make_parcel("q"))
    ]  # fmt: skip
    replica.apply_batch(Batch(1, "w", "test", Cause(CauseKind.REQUEST), changes))
    assert [replica.get_version(newer, key) for key in "pq"] == [1, 1]
