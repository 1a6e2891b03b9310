"""Watches in situations that the state machine test does not reach: closing while waking, first loads, steps."""

from tests.cluster.state.inventory import (
    CRATES,
    CRATES_BY_COLOUR,
    CRATES_OF_OWNER,
    NOTICE,
    PARCELS,
    Notice,
    make_batch,
    make_crate,
    make_parcel,
    make_replica,
    make_stored_record,
)
from wharf.cluster.state import ReplicaLoad, Subscription
from wharf.cluster.state.replica import MAX_COMPARED_PER_STEP
from wharf.cluster.state.tables import JOB_VERSIONS
from wharf.cluster.state.watches import watch_index, watch_index_field, watch_key, watch_prefix, watch_table
from wharf.contract.model.log import WRITE_INDEX, DeleteRecord, LogPosition, PutRecord


def test_the_first_batch_wakes_its_subscriptions() -> None:
    replica = make_replica()
    woken: list[str] = []
    replica.watches.subscribe([watch_key(NOTICE)], lambda: woken.append("notice"))
    replica.watches.subscribe([watch_table(CRATES)], lambda: woken.append("crates"))

    replica.apply_batch(make_batch(1, NOTICE.build_put(Notice(create_index=WRITE_INDEX))))

    assert woken == ["notice"]


def test_the_first_load_wakes_its_subscriptions() -> None:
    replica = make_replica()
    woken: list[str] = []
    replica.watches.subscribe([watch_key(CRATES, "north", "a")], lambda: woken.append("a"))

    replica.load_state([make_stored_record(CRATES, 1, make_crate("a"))], LogPosition(1, {"crates": 1}))

    assert woken == ["a"]


def test_a_subscription_closed_while_others_are_woken_is_not_woken() -> None:
    replica = make_replica()
    woken: list[str] = []
    later: list[Subscription] = []

    def wake_first() -> None:
        woken.append("first")
        later[0].close()

    replica.watches.subscribe([watch_table(CRATES)], wake_first)
    later.append(replica.watches.subscribe([watch_table(CRATES)], lambda: woken.append("second")))
    replica.watches.subscribe([watch_table(CRATES)], lambda: woken.append("third"))

    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))

    assert woken == ["first", "third"]


def test_a_subscription_made_while_others_are_woken_waits_for_the_next_batch() -> None:
    replica = make_replica()
    woken: list[str] = []

    def wake() -> None:
        woken.append("first")
        replica.watches.subscribe([watch_table(CRATES)], lambda: woken.append("second"))

    replica.watches.subscribe([watch_table(CRATES)], wake)

    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))
    assert woken == ["first"]
    replica.apply_batch(make_batch(2, CRATES.build_delete("north", "a")))
    assert woken == ["first", "second"]


def test_subscriptions_are_woken_in_the_order_of_subscribing() -> None:
    replica = make_replica()
    woken: list[str] = []
    for name in ("c", "a", "b"):
        replica.watches.subscribe([watch_key(CRATES, "north", name)], lambda name=name: woken.append(name))  # type: ignore[misc]  # mypy takes a lambda with a default for one with an argument

    replica.apply_batch(make_batch(1, *(CRATES.build_put(make_crate(name)) for name in "abc")))

    assert woken == ["c", "a", "b"]


def test_a_target_given_twice_is_watched_once_and_removed_completely() -> None:
    replica = make_replica()
    woken: list[str] = []
    subscription = replica.watches.subscribe([watch_key(NOTICE), watch_key(NOTICE)], lambda: woken.append("notice"))

    replica.apply_batch(make_batch(1, NOTICE.build_put(Notice())))
    subscription.close()

    assert (woken, replica.watches.subscription_count, replica.watches.table_watches) == (["notice"], 0, {})


def test_a_key_with_a_number_is_watched_under_the_key_it_is_read_by() -> None:
    assert watch_key(JOB_VERSIONS, "default", "web", 3).value == "default\0web\0" + "3".zfill(20)


def test_a_load_compares_in_steps_and_wakes_in_order_at_the_end() -> None:
    replica = make_replica()
    count = 2 * MAX_COMPARED_PER_STEP + 1
    replica.apply_batch(make_batch(1, *(PARCELS.build_put(make_parcel(f"{number:05}")) for number in range(count))))
    woken: list[str] = []
    for number in (count - 1, 7, 8):
        key = f"{number:05}"
        replica.watches.subscribe([watch_key(PARCELS, key)], lambda key=key: woken.append(key))  # type: ignore[misc]  # as above
    loading = ReplicaLoad(replica)
    loading.add_records(
        [make_stored_record(PARCELS, 1, make_parcel(f"{number:05}")) for number in range(count) if number != 7]
    )
    loading.add_records([make_stored_record(PARCELS, 2, make_parcel("new"))])
    finishing = loading.finish_in_steps(LogPosition(2, {"parcels": 2}))

    steps = [(replica.index, replica.count_records(PARCELS), list(woken)) for _ in finishing]

    assert steps == [(2, count, [])] * 3
    assert woken == ["00007"]


def test_a_subscription_made_during_a_load_misses_no_later_change() -> None:
    replica = make_replica()
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a", owner="ann"))))
    woken: list[str] = []
    replica.watches.subscribe([watch_index(CRATES_OF_OWNER, "north", "ann")], lambda: woken.append("before"))
    loading = ReplicaLoad(replica)
    loading.add_records([make_stored_record(CRATES, 2, make_crate("b", owner="ann"))])
    finishing = loading.finish_in_steps(LogPosition(2, {"crates": 2}))

    next(finishing)
    replica.watches.subscribe([watch_index(CRATES_OF_OWNER, "north", "bob")], lambda: woken.append("during"))
    replica.apply_batch(make_batch(3, CRATES.build_put(make_crate("c", owner="bob"))))
    assert woken == ["during"]
    assert list(finishing) == []
    assert woken == ["during", "before"]


def test_subscriptions_to_prefixes_of_one_length_are_closed_independently() -> None:
    replica = make_replica()
    woken: list[str] = []
    kept = replica.watches.subscribe([watch_table(CRATES)], lambda: None)
    first = replica.watches.subscribe([watch_prefix(CRATES, "no")], lambda: woken.append("no"))
    second = replica.watches.subscribe([watch_prefix(CRATES, "so")], lambda: woken.append("so"))

    first.close()
    replica.apply_batch(
        make_batch(1, CRATES.build_put(make_crate("a", "north")), CRATES.build_put(make_crate("a", "south")))
    )
    assert woken == ["so"]
    second.close()

    assert replica.watches.table_watches[CRATES.name].prefix_lengths == {}
    kept.close()
    assert replica.watches.table_watches == {}


def test_subscriptions_to_prefixes_of_several_lengths_are_all_woken() -> None:
    replica = make_replica()
    woken: list[str] = []
    for prefix in ("", "n", "north\0a", "north\0ab", "nox", "nort"):
        replica.watches.subscribe([watch_prefix(CRATES, prefix)], lambda prefix=prefix: woken.append(prefix))  # type: ignore[misc]  # as above

    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a"))))

    assert woken == ["", "n", "north\0a", "nort"]


def test_closing_one_of_two_subscriptions_to_a_target_leaves_the_other() -> None:
    replica = make_replica()
    woken: list[str] = []
    targets = [
        watch_table(CRATES),
        watch_key(CRATES, "north", "a"),
        watch_prefix(CRATES, "no"),
        watch_index(CRATES_OF_OWNER, "north", "ann"),
    ]
    pairs = [
        [replica.watches.subscribe([target], lambda name=name: woken.append(name)) for name in ("closed", "open")]  # type: ignore[misc]  # as above
        for target in targets
    ]
    for closed, _ in pairs:
        closed.close()
        closed.close()
    assert replica.watches.subscription_count == len(targets)

    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a", owner="ann"))))

    assert woken == ["open"] * len(targets)


def test_a_subscription_to_a_field_is_woken_only_by_changes_of_this_field_and_of_the_records() -> None:
    replica = make_replica()
    woken: list[int] = []
    subscription = replica.watches.subscribe(
        [watch_index_field(CRATES_OF_OWNER, "weight", "north", "ada")], lambda: woken.append(replica.index)
    )
    batches: list[PutRecord | DeleteRecord] = [
        CRATES.build_put(make_crate("a", owner="ada")),
        CRATES.build_put(make_crate("a", owner="ada", colour="red")),  # Another field.
        CRATES.build_put(make_crate("a", owner="ada", colour="red", weight=5)),
        CRATES.build_put(make_crate("b", owner="bob", weight=7)),  # Of another owner.
        CRATES.build_put(make_crate("b", owner="ada", weight=7)),
        CRATES.build_put(make_crate("b", owner="bob", weight=7)),
        CRATES.build_delete("north", "a"),
    ]

    for index, change in enumerate(batches, start=1):
        subscription.rearm()
        replica.apply_batch(make_batch(index, change))
    subscription.close()

    assert woken == [1, 3, 5, 6, 7]
    assert replica.watches.table_watches == {}


def test_subscriptions_to_an_index_and_to_a_field_of_it_are_independent() -> None:
    replica = make_replica()
    woken: list[str] = []
    field = replica.watches.subscribe([watch_index_field(CRATES_BY_COLOUR, "owner", "red")], lambda: woken.append("a"))
    whole = replica.watches.subscribe([watch_index(CRATES_BY_COLOUR, "red")], lambda: woken.append("index"))
    replica.apply_batch(make_batch(1, CRATES.build_put(make_crate("a", colour="red"))))
    field.close()
    whole.rearm()

    replica.watches.subscribe([watch_index_field(CRATES_BY_COLOUR, "owner", "red")], lambda: woken.append("b"))
    replica.apply_batch(make_batch(2, CRATES.build_put(make_crate("a", colour="red", weight=2))))

    assert woken == ["a", "index", "index"]
