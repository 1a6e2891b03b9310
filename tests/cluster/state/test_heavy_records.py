"""Large records are decoded in short steps, and share equal values with related records."""

import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cluster.state.inventory import make_write
from wharf.cluster.state import BatchApplication, Replica, ReplicaLoad, stepwise
from wharf.cluster.state.codec import DamagedRecord, encode_record
from wharf.cluster.state.stepwise import (
    HEAVY_RECORD_BYTES,
    PART_BYTES,
    STEP_BYTES,
    decode_in_steps,
    digest_fields_in_steps,
)
from wharf.cluster.state.table_records import SMALL_RECORD_BYTES
from wharf.cluster.state.tables import ALL_TABLES, EVALUATIONS, JOB_VERSIONS, JOBS
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.networks import CNI, NetworkResource
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.services import Service
from wharf.contract.model.jobs.templates import Template
from wharf.contract.model.log import Batch, EncodedChange, LogPosition, StoredRecord


def make_group(name: str, *, entries: int = 0, text: str = "") -> TaskGroup:
    env = {f"key{number:04}": "x" * 20 for number in range(entries)} or None
    templates = (Template(embedded_tmpl=text),) if text else None
    tasks = (Task(name="server", driver="mock", env=env, templates=templates, config={"args": [1, {"a": None}]}),)
    return TaskGroup(name=name, tasks=tasks, services=(Service(name="web", meta=env),))


def make_job(name: str = "web", *, groups: int = 40, version: int = 0, **fields: Any) -> Job:
    made = tuple(make_group(f"group{number}", entries=300) for number in range(groups))
    return Job(id=name, name=name, task_groups=made, version=version, **fields)


def make_batch(index: int, *jobs: Job) -> Batch:
    puts = [put for job in jobs for put in (JOB_VERSIONS.build_put(job), JOBS.build_put(job))]
    logged = Replica(ALL_TABLES).encode_write(make_write(*puts), write_id=f"write-{index}")
    assert all(len(change.data or b"") > HEAVY_RECORD_BYTES for change in logged.changes)
    return Batch(index, logged.id, logged.kind, logged.cause, logged.changes)


def read(replica: Replica, name: str = "web") -> Job:
    job = replica.get(JOBS, "default", name)
    assert job is not None
    return job


def read_version(replica: Replica, name: str = "web", version: int = 0) -> Job:
    job = replica.get(JOB_VERSIONS, "default", name, version)
    assert job is not None
    return job


def exhaust(steps: Any) -> Any:
    """Return what a generator of steps returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


groups = st.builds(
    make_group, st.text(max_size=5), entries=st.sampled_from([0, 1, 30]), text=st.sampled_from(["", "x", "y" * 3_000])
)


@given(
    job=st.builds(make_job, groups=st.just(0)), groups=st.lists(groups, max_size=6), part_bytes=st.integers(16, 4_000)
)
def test_a_record_decoded_in_steps_equals_one_decoded_at_once(
    job: Job, groups: list[TaskGroup], part_bytes: int
) -> None:
    data = encode_record(JOBS, replace(job, task_groups=tuple(groups), meta={"a": "b"}, status=JobStatus.RUNNING))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepwise, "PART_BYTES", part_bytes)
        decoded = exhaust(decode_in_steps(data, Job))

    assert repr(decoded) == repr(msgspec.msgpack.decode(data, type=Job))


def test_a_large_record_is_decoded_in_steps_of_limited_size() -> None:
    data = encode_record(JOBS, make_job(groups=150))
    assert len(data) > 2_500_000

    assert len(list(decode_in_steps(data, Job))) >= len(data) // (STEP_BYTES + PART_BYTES)


def test_the_networks_of_one_task_are_decoded_in_steps_of_limited_size() -> None:
    arguments = {f"key{number:04}": "x" * 10 for number in range(4_000)}
    networks = tuple(NetworkResource(mode=f"cni/{number}", cni=CNI(args=arguments)) for number in range(40))
    task = Task(name="server", driver="mock", resources=Resources(networks=networks))
    job = Job(id="web", name="web", task_groups=(TaskGroup(name="group", tasks=(task,)),))
    data = encode_record(JOBS, job)
    assert len(data) > 2_500_000

    assert len(list(decode_in_steps(data, Job))) >= len(data) // (STEP_BYTES + PART_BYTES)
    assert repr(exhaust(decode_in_steps(data, Job))) == repr(msgspec.msgpack.decode(data, type=Job))


def list_undivided_records(record_type: type[msgspec.Struct], seen: set[type]) -> list[str]:
    """Return the fields, of this record and all records in it, that hold a record that is decoded in one call."""
    if record_type in seen:
        return []
    seen.add(record_type)
    found = []
    for name, kind in stepwise._get_field_types(record_type).values():
        inner = stepwise._without_none(kind)
        members = [stepwise._without_none(each) for each in (inner, *typing.get_args(inner))]
        records = [each for each in members if isinstance(each, type) and issubclass(each, msgspec.Struct)]
        if inner in records and stepwise._find_stand_in(kind) is None:
            found.append(f"{record_type.__name__}.{name}")
        for record in records:
            found += list_undivided_records(record, seen)
    return found


def test_no_record_within_a_stored_record_is_decoded_in_one_call() -> None:
    seen: set[type] = set()

    found = [field for table in ALL_TABLES for field in list_undivided_records(table.record_type, seen)]

    assert len(seen) > 60
    assert found == []


class MixedRecord(msgspec.Struct):
    """A record with a list whose elements have several types."""

    values: tuple[str | int, ...]


def test_a_large_element_of_a_list_with_several_types_is_decoded() -> None:
    record = MixedRecord((1, "x" * 2 * PART_BYTES))

    assert exhaust(decode_in_steps(msgspec.msgpack.encode(record), MixedRecord)) == record


def test_digests_of_fields_are_equal_if_and_only_if_the_values_are() -> None:
    def digest(job: Job) -> tuple[bytes, ...]:
        result: tuple[bytes, ...] = exhaust(digest_fields_in_steps(encode_record(JOBS, job), ["TaskGroups", "Meta"]))
        return result

    first = digest(make_job(meta={"a": "1"}))
    second = digest(make_job("other", meta={"a": "2"}))

    assert first[0] == second[0]
    assert first[1] != second[1]


def test_a_heavy_job_and_its_version_are_one_record() -> None:
    replica = Replica(ALL_TABLES)
    replica.apply_batch(make_batch(1, make_job()))

    assert read_version(replica) is read(replica)
    assert read(replica).modify_index == 1


def test_a_heavy_job_whose_status_changes_keeps_its_groups() -> None:
    replica, job = Replica(ALL_TABLES), make_job()
    replica.apply_batch(make_batch(1, job))
    groups = read(replica).task_groups

    replica.apply_batch(make_batch(2, replace(job, status=JobStatus.RUNNING)))

    assert read(replica).status is JobStatus.RUNNING
    assert read(replica).task_groups is groups
    assert read_version(replica).task_groups is groups


def test_a_new_version_of_a_heavy_job_shares_only_its_equal_fields() -> None:
    replica, job = Replica(ALL_TABLES), make_job(meta={"a": "1"})
    replica.apply_batch(make_batch(1, job))

    replica.apply_batch(make_batch(2, replace(job, version=1, meta={"a": "2"})))

    assert read(replica).task_groups is read_version(replica).task_groups
    assert read(replica).meta == {"a": "2"}
    assert read_version(replica).meta == {"a": "1"}


def test_children_of_a_heavy_job_share_its_groups() -> None:
    replica = Replica(ALL_TABLES)
    replica.apply_batch(make_batch(1, make_job("parent"), make_job("child1"), make_job("child2")))

    assert read(replica, "child1").task_groups is read(replica, "parent").task_groups
    assert read(replica, "child2").task_groups is read(replica, "parent").task_groups


def test_a_loaded_heavy_job_shares_its_groups_with_later_writes() -> None:
    replica, job = Replica(ALL_TABLES), make_job()
    rows = [
        StoredRecord(change.table, change.key, 5, change.data)
        for change in make_batch(5, job).changes
        if change.data is not None
    ]
    loading = ReplicaLoad(replica)
    assert len(list(loading.add_in_steps(rows))) > len(rows)
    loading.finish(LogPosition(5, {}))
    groups = read(replica).task_groups

    replica.apply_batch(make_batch(6, replace(job, status=JobStatus.DEAD)))

    assert read_version(replica).task_groups is groups
    assert read(replica).task_groups is groups


def test_a_job_that_becomes_small_no_longer_counts_as_heavy() -> None:
    replica, job = Replica(ALL_TABLES), make_job()
    replica.apply_batch(make_batch(1, job))
    small = replace(job, task_groups=(make_group("small"),))
    change = EncodedChange(JOBS.name, JOBS.get_key(small), encode_record(JOBS, small))
    batch = make_batch(2, job)

    replica.apply_batch(Batch(2, batch.id, batch.kind, batch.cause, [change]))

    assert read(replica).groups == small.groups
    assert replica.get_table_records(JOBS)._heavy == {}


def test_a_damaged_heavy_record_changes_nothing() -> None:
    replica = Replica(ALL_TABLES)
    replica.apply_batch(make_batch(1, make_job(meta={"a": "1"})))
    batch = make_batch(2, make_job(meta={"a": "2"}))
    damaged = [
        EncodedChange(change.table, change.key, (change.data or b"").replace(b"\xa6server", b"\xc1server", 1))
        for change in batch.changes
    ]

    with pytest.raises(DamagedRecord, match="of index 2 is damaged"):
        replica.apply_batch(Batch(2, batch.id, batch.kind, batch.cause, damaged))

    assert read(replica).meta == {"a": "1"}


def test_a_batch_with_a_heavy_record_is_visible_only_when_it_is_whole() -> None:
    replica = Replica(ALL_TABLES)
    application = BatchApplication(replica, make_batch(1, make_job()))

    seen = [replica.get(JOBS, "default", "web") for _ in application.decode_in_steps()]
    application.apply_changes()

    assert len(seen) > 2
    assert set(seen) == {None}
    assert read(replica).id == "web"


# -- records that are large enough to be measured before they are encoded


def list_large(replica: Replica, table: Any) -> list[Any]:
    records = replica.get_table_records(table).large_records
    assert [id(record) for record in records.values()] == list(records)
    return list(records.values())


def put(replica: Replica, index: int, *changes: Any) -> None:
    logged = Replica(ALL_TABLES).encode_write(make_write(*changes), write_id=f"write-{index}")
    replica.apply_batch(Batch(index, logged.id, logged.kind, logged.cause, logged.changes))


def make_evaluation(description: str) -> Evaluation:
    return Evaluation(
        id="e", job_id="web", type=SchedulerType.SERVICE, triggered_by=EvaluationTrigger.JOB_REGISTER,
        status=EvaluationStatus.COMPLETE, status_description=description,
    )  # fmt: skip


@pytest.mark.parametrize("size", [SMALL_RECORD_BYTES + 1, HEAVY_RECORD_BYTES + 1], ids=["large", "heavy"])
def test_a_table_knows_its_large_records_until_they_are_replaced_or_deleted(size: int) -> None:
    replica = Replica(ALL_TABLES)
    put(replica, 1, EVALUATIONS.build_put(make_evaluation("x" * size)))
    assert list_large(replica, EVALUATIONS) == [replica.get(EVALUATIONS, "e")]
    put(replica, 2, EVALUATIONS.build_put(make_evaluation("y" * size)))
    assert list_large(replica, EVALUATIONS) == [replica.get(EVALUATIONS, "e")]

    put(replica, 3, EVALUATIONS.build_put(make_evaluation("small")))
    assert list_large(replica, EVALUATIONS) == []

    put(replica, 4, EVALUATIONS.build_put(make_evaluation("x" * size)))
    put(replica, 5, EVALUATIONS.build_delete("e"))
    assert list_large(replica, EVALUATIONS) == []


def test_a_large_record_under_two_keys_is_large_in_both_tables() -> None:
    replica, job = Replica(ALL_TABLES), make_job(groups=2)
    put(replica, 1, JOBS.build_put(job), JOB_VERSIONS.build_put(job))

    assert list_large(replica, JOBS) == list_large(replica, JOB_VERSIONS) == [read(replica)]


def test_a_large_record_that_this_process_wrote_is_known() -> None:
    replica = Replica(ALL_TABLES)
    write = make_write(EVALUATIONS.build_put(make_evaluation("x" * 20_000)))
    logged = replica.encode_write(write, write_id="w")
    batch = Batch(1, logged.id, logged.kind, logged.cause, logged.changes)
    application = BatchApplication(replica, batch, replica.collect_adoptable(write))
    assert list(application.decode_in_steps()) == []
    application.apply_changes()

    assert list_large(replica, EVALUATIONS) == [replica.get(EVALUATIONS, "e")]


def test_a_loaded_large_record_is_known() -> None:
    replica = Replica(ALL_TABLES)
    data = encode_record(EVALUATIONS, make_evaluation("x" * 20_000))
    replica.load_state([StoredRecord(EVALUATIONS.name, "e", 5, data)], LogPosition(5, {}))

    assert list_large(replica, EVALUATIONS) == [replica.get(EVALUATIONS, "e")]
