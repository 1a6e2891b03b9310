"""Consistent views of a table, and of the records with one index value, while the table is written."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import a_job
from tests.kit.state import AState, an_evaluation
from wharf.cluster.state.table_snapshot import IndexSnapshot, TableSnapshot
from wharf.cluster.state.tables import EVALUATIONS, EVALUATIONS_OF_JOB, JOBS
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX

NUMBERS = st.integers(min_value=0, max_value=25)
WRITES = st.lists(st.tuples(st.sampled_from(("put", "drop", "recreate")), NUMBERS), max_size=6)


def job(number: int) -> Job:
    return Job(
        id=f"j{number:02}",
        namespace="default" if number % 2 else "other",
        create_index=WRITE_INDEX,
        job_modify_index=WRITE_INDEX,
    )


def evaluation(number: int) -> Evaluation:
    return an_evaluation(a_job(), f"{number % 3}e-{number:02}")


def write(state: AState, action: str, number: int) -> None:
    """Write a record of this number to both tables. `recreate` deletes it before."""
    for table, record in ((JOBS, job(number)), (EVALUATIONS, evaluation(number))):
        any_table: Any = table
        key = table.get_key(record).split("\0")
        stored = state.replica.get(any_table, *key)
        if action != "put" and stored is not None:
            state.put(any_table.build_delete(*key))
        if action == "recreate" or (action == "put" and stored is None):
            state.put(any_table.build_put(record))
        elif action == "put":
            state.put(any_table.build_put(stored))  # Another version of the same record.


@given(
    initial=st.lists(NUMBERS, max_size=25, unique=True),
    between=st.lists(WRITES, max_size=8),
    count=st.integers(min_value=1, max_value=7),
    order=st.sampled_from(("jobs", "jobs of default", "evaluations", "evaluations by id", "evaluations 1e")),
    reverse=st.booleans(),
    from_middle=st.booleans(),
)
def test_all_slices_together_are_the_table_at_the_start_in_its_order(
    initial: list[int], between: list[list[tuple[str, int]]], count: int, order: str, reverse: bool, from_middle: bool
) -> None:
    state = AState()
    for number in initial:
        write(state, "put", number)
    table: Any = JOBS if order.startswith("jobs") else EVALUATIONS
    by_creation = order == "evaluations"
    prefix = {"jobs of default": "default\0", "evaluations 1e": "1e"}.get(order, "")

    def sort_key(record: Any) -> tuple[int, str]:
        return (record.create_index if by_creation else 0, table.get_key(record))

    records = [record for record in state.replica.iter_all(table) if table.get_key(record).startswith(prefix)]
    expected = sorted(records, key=sort_key, reverse=reverse)
    start = None
    if from_middle and expected:
        start = sort_key(expected[len(expected) // 2])
        expected = expected[len(expected) // 2 :]

    snapshot = TableSnapshot(state.replica, table, by_creation=by_creation, prefix=prefix, start=start, reverse=reverse)
    loaded: list[Any] = []
    steps = iter(between)
    while records := snapshot.read_next(count):
        loaded += records
        for action, number in next(steps, []):
            write(state, action, number)

    assert loaded == expected
    assert state.replica.watches.table_watches == {}


def test_a_load_does_not_change_an_open_snapshot() -> None:
    state = AState()
    for number in range(6):
        write(state, "put", number)
    before = list(state.replica.iter_by_key(JOBS))
    snapshot = TableSnapshot(state.replica, JOBS)
    first = snapshot.read_next(2)

    state.replica.load_state(state.log.list_records(), state.log.get_position())
    write(state, "drop", 5)
    write(state, "put", 9)

    remaining: list[Job] = []
    while records := snapshot.read_next(2):
        remaining += records
    assert [*first, *remaining] == before


def test_a_snapshot_that_is_closed_early_removes_its_observer() -> None:
    state = AState()
    write(state, "put", 1)
    snapshot = TableSnapshot(state.replica, JOBS)

    snapshot.close()
    snapshot.close()

    assert state.replica.watches.table_watches == {}


def test_a_snapshot_whose_remaining_records_are_all_deleted_returns_the_originals() -> None:
    for returned_before in (1, 2):
        state = AState()
        for number in range(2):
            write(state, "put", number)
        before = list(state.replica.iter_by_key(JOBS))
        snapshot = TableSnapshot(state.replica, JOBS)
        loaded = snapshot.read_next(returned_before)
        for number in range(2):
            write(state, "drop", number)

        assert [*loaded, *snapshot.read_next(5)] == before
        assert snapshot.read_next(5) == []


def test_a_snapshot_of_an_index_value_has_the_records_of_the_start() -> None:
    state = AState()
    for number in range(4):
        write(state, "put", number)
    expected = {each.id: each for each in state.replica.iter_all(EVALUATIONS)}
    snapshot = IndexSnapshot(state.replica, EVALUATIONS_OF_JOB, "default", "shop")

    records = snapshot.read_next(1)
    for action, number in (("put", 0), ("drop", 1), ("recreate", 2), ("put", 4)):
        write(state, action, number)
    while found := snapshot.read_next(2):
        records += found
    snapshot.close()

    assert {each.id: each for each in records} == expected
