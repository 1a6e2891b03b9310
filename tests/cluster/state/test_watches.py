"""What the machine of the watches does not reach: endings in the middle of waking, first loads, steps."""

from tests.cluster.state.inventory import (
    CRATES,
    CRATES_OF_OWNER,
    NOTICE,
    PARCELS,
    Notice,
    a_batch,
    a_crate,
    a_parcel,
    a_replica,
    a_row,
)
from wharf.cluster.state import ReplicaLoad, Subscription
from wharf.cluster.state.replica import MAX_COMPARED_PER_STEP
from wharf.cluster.state.tables import JOB_VERSIONS
from wharf.cluster.state.watches import watch_index, watch_key, watch_table
from wharf.contract.model.log import WRITE_INDEX, LogPosition


def test_the_founding_batch_wakes_those_who_waited_for_it() -> None:
    replica = a_replica()
    woken: list[str] = []
    replica.watches.subscribe([watch_key(NOTICE)], lambda: woken.append("notice"))
    replica.watches.subscribe([watch_table(CRATES)], lambda: woken.append("crates"))

    replica.apply_batch(a_batch(1, NOTICE.build_put(Notice(create_index=WRITE_INDEX))))

    assert woken == ["notice"]


def test_the_first_load_wakes_those_who_waited_for_it() -> None:
    replica = a_replica()
    woken: list[str] = []
    replica.watches.subscribe([watch_key(CRATES, "north", "a")], lambda: woken.append("a"))

    replica.load_state([a_row(CRATES, 1, a_crate("a"))], LogPosition(1, {"crates": 1}))

    assert woken == ["a"]


def test_who_ends_while_others_are_woken_by_the_same_batch_is_not_woken() -> None:
    replica = a_replica()
    woken: list[str] = []
    later: list[Subscription] = []

    def wake_first() -> None:
        woken.append("first")
        later[0].close()

    replica.watches.subscribe([watch_table(CRATES)], wake_first)
    later.append(replica.watches.subscribe([watch_table(CRATES)], lambda: woken.append("second")))
    replica.watches.subscribe([watch_table(CRATES)], lambda: woken.append("third"))

    replica.apply_batch(a_batch(1, CRATES.build_put(a_crate("a"))))

    assert woken == ["first", "third"]


def test_who_subscribes_while_others_are_woken_waits_for_the_next_batch() -> None:
    replica = a_replica()
    woken: list[str] = []

    def wake() -> None:
        woken.append("first")
        replica.watches.subscribe([watch_table(CRATES)], lambda: woken.append("second"))

    replica.watches.subscribe([watch_table(CRATES)], wake)

    replica.apply_batch(a_batch(1, CRATES.build_put(a_crate("a"))))
    assert woken == ["first"]
    replica.apply_batch(a_batch(2, CRATES.build_delete("north", "a")))
    assert woken == ["first", "second"]


def test_the_order_of_waking_is_that_of_subscribing_whatever_the_order_of_changes() -> None:
    replica = a_replica()
    woken: list[str] = []
    for name in ("c", "a", "b"):
        replica.watches.subscribe([watch_key(CRATES, "north", name)], lambda name=name: woken.append(name))  # type: ignore[misc]  # mypy takes a lambda with a default for one with an argument

    replica.apply_batch(a_batch(1, *(CRATES.build_put(a_crate(name)) for name in "abc")))

    assert woken == ["c", "a", "b"]


def test_a_name_that_is_given_twice_is_watched_once_and_forgotten_whole() -> None:
    replica = a_replica()
    woken: list[str] = []
    subscription = replica.watches.subscribe([watch_key(NOTICE), watch_key(NOTICE)], lambda: woken.append("notice"))

    replica.apply_batch(a_batch(1, NOTICE.build_put(Notice())))
    subscription.close()

    assert (woken, replica.watches.subscription_count, replica.watches.table_watches) == (["notice"], 0, {})


def test_numbers_in_a_key_are_watched_as_they_are_read() -> None:
    assert watch_key(JOB_VERSIONS, "default", "web", 3).value == "default\0web\0" + "3".zfill(20)


def test_a_load_compares_in_steps_and_wakes_in_order_at_the_end() -> None:
    replica = a_replica()
    count = 2 * MAX_COMPARED_PER_STEP + 1
    replica.apply_batch(a_batch(1, *(PARCELS.build_put(a_parcel(f"{number:05}")) for number in range(count))))
    woken: list[str] = []
    for number in (count - 1, 7, 8):
        key = f"{number:05}"
        replica.watches.subscribe([watch_key(PARCELS, key)], lambda key=key: woken.append(key))  # type: ignore[misc]  # as above
    loading = ReplicaLoad(replica)
    loading.add_records([a_row(PARCELS, 1, a_parcel(f"{number:05}")) for number in range(count) if number != 7])
    loading.add_records([a_row(PARCELS, 2, a_parcel("new"))])
    finishing = loading.finish_in_steps(LogPosition(2, {"parcels": 2}))

    steps = [(replica.index, replica.count_records(PARCELS), list(woken)) for _ in finishing]

    assert steps == [(2, count, [])] * 3
    assert woken == ["00007"]


def test_who_subscribes_during_the_steps_of_a_load_misses_nothing_that_follows() -> None:
    replica = a_replica()
    replica.apply_batch(a_batch(1, CRATES.build_put(a_crate("a", owner="ann"))))
    woken: list[str] = []
    replica.watches.subscribe([watch_index(CRATES_OF_OWNER, "north", "ann")], lambda: woken.append("before"))
    loading = ReplicaLoad(replica)
    loading.add_records([a_row(CRATES, 2, a_crate("b", owner="ann"))])
    finishing = loading.finish_in_steps(LogPosition(2, {"crates": 2}))

    next(finishing)
    replica.watches.subscribe([watch_index(CRATES_OF_OWNER, "north", "bob")], lambda: woken.append("during"))
    replica.apply_batch(a_batch(3, CRATES.build_put(a_crate("c", owner="bob"))))
    assert woken == ["during"]
    assert list(finishing) == []
    assert woken == ["during", "before"]
