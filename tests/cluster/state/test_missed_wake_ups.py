"""A waiting reader never misses a change, whatever the order of subscribing, reading and applying.

Each party is a generator that yields where another one could run. Every order of their steps is tried.
"""

from collections.abc import Callable, Generator, Iterator

import pytest

from tests.cluster.state.inventory import (
    CRATES,
    CRATES_BY_COLOUR,
    CRATES_OF_OWNER,
    Crate,
    make_batch,
    make_crate,
    make_replica,
    make_stored_record,
)
from wharf.cluster.state import Replica, ReplicaLoad, WatchTarget
from wharf.cluster.state.watches import watch_index, watch_key, watch_prefix, watch_table
from wharf.contract.model.log import LogPosition

Party = Generator[Callable[[], bool], None, None]
"""A generator. Between its steps it yields a function that returns whether the next step can run."""

LAST_VERSION = 3
"""The version that a reader waits for: the version of the last write."""


def always() -> bool:
    return True


def query_and_wait(replica: Replica, watched: WatchTarget, versions: list[int]) -> Party:
    """A blocking query: subscribe, read, wait, read again."""
    subscription = replica.watches.subscribe([watched], lambda: None)
    yield always
    while True:
        subscription.rearm()
        yield always
        crate = replica.get(CRATES, "north", "a")
        if crate is not None and crate.modify_index >= LAST_VERSION:
            break
        yield lambda: subscription.has_fired
    subscription.close()
    versions.append(crate.modify_index)


def query_then_subscribe(replica: Replica, watched: WatchTarget, versions: list[int]) -> Party:
    crate = replica.get(CRATES, "north", "a")
    yield always
    if crate is None or crate.modify_index < LAST_VERSION:
        subscription = replica.watches.subscribe([watched], lambda: None)
        yield lambda: subscription.has_fired
        crate = replica.get(CRATES, "north", "a")
    assert crate is not None
    versions.append(crate.modify_index)


def query_then_rearm(replica: Replica, watched: WatchTarget, versions: list[int]) -> Party:
    subscription = replica.watches.subscribe([watched], lambda: None)
    yield always
    while True:
        crate = replica.get(CRATES, "north", "a")
        if crate is not None and crate.modify_index >= LAST_VERSION:
            break
        yield always
        subscription.rearm()
        yield lambda: subscription.has_fired
    versions.append(crate.modify_index)


def apply_batches(replica: Replica) -> Party:
    for index in (2, 3):
        yield always
        replica.apply_batch(make_batch(index, CRATES.build_put(make_crate_for_index(index))))


def apply_last_batch(replica: Replica) -> Party:
    yield always
    replica.apply_batch(make_batch(LAST_VERSION, CRATES.build_put(make_crate_for_index(LAST_VERSION))))


def load_then_apply(replica: Replica) -> Party:
    """Load the state in slices and steps after an interrupted feed, then continue with the feed."""
    loading = ReplicaLoad(replica)
    for index, crate in ((2, make_crate_for_index(2)), (1, make_crate("z", colour="blue"))):
        yield always
        loading.add_records([make_stored_record(CRATES, index, crate)])
    finishing = loading.finish_in_steps(LogPosition(2, {"crates": 2}))
    yield always
    for _ in finishing:
        yield always
    replica.apply_batch(make_batch(3, CRATES.build_put(make_crate_for_index(3))))


def make_crate_for_index(index: int) -> Crate:
    """Return the crate of this index. Each write changes its colour, so a watched value may be the old or the new one."""
    return make_crate("a", owner="ann", colour={1: "blue", 2: "green", 3: "red"}[index])


def make_replica_with_crate() -> Replica:
    replica = make_replica()
    replica.apply_batch(
        make_batch(1, CRATES.build_put(make_crate_for_index(1)), CRATES.build_put(make_crate("b", colour="blue")))
    )
    return replica


def run_every_interleaving(make: Callable[[], list[Party]]) -> Iterator[list[int]]:
    """Run the parties in every order of their steps. Yield for each order the parties that can never continue.

    Generators cannot be copied, so each order runs from the beginning. `choices` is the order: for each step, which of
    the parties that could run did so.
    """
    choices: list[int] = []
    while True:
        parties = make()
        ready: dict[int, Callable[[], bool]] = dict.fromkeys(range(len(parties)), always)
        runnable_counts: list[int] = []
        while runnable := [number for number, can_run in ready.items() if can_run()]:
            step = len(runnable_counts)
            if step == len(choices):
                choices.append(0)
            runnable_counts.append(len(runnable))
            party = runnable[choices[step]]
            try:
                ready[party] = next(parties[party])
            except StopIteration:
                del ready[party]
        yield list(ready)
        while choices and choices[-1] + 1 == runnable_counts[len(choices) - 1]:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1


WATCHED = {
    "table": watch_table(CRATES),
    "key": watch_key(CRATES, "north", "a"),
    "prefix": watch_prefix(CRATES, "north\0"),
    "index": watch_index(CRATES_OF_OWNER, "north", "ann"),
    "index value that is left or reached": watch_index(CRATES_BY_COLOUR, "red"),
}


@pytest.mark.parametrize("writer", [apply_batches, load_then_apply])
@pytest.mark.parametrize("watched", WATCHED.values(), ids=WATCHED.keys())
def test_a_reader_that_subscribes_before_it_reads_always_sees_the_last_write(
    watched: WatchTarget, writer: Callable[[Replica], Party]
) -> None:
    versions: list[int] = []

    def make() -> list[Party]:
        replica = make_replica_with_crate()
        return [query_and_wait(replica, watched, versions), writer(replica)]

    orders = list(run_every_interleaving(make))

    assert [[]] * len(orders) == orders
    assert [LAST_VERSION] * len(orders) == versions


def test_two_readers_are_both_woken() -> None:
    versions: list[int] = []

    def make() -> list[Party]:
        replica = make_replica_with_crate()
        readers = [
            query_and_wait(replica, WATCHED["key"], versions),
            query_and_wait(replica, WATCHED["prefix"], versions),
        ]
        return [*readers, apply_last_batch(replica)]

    orders = list(run_every_interleaving(make))

    assert [[]] * len(orders) == orders
    assert [LAST_VERSION] * 2 * len(orders) == versions


@pytest.mark.parametrize("reader", [query_then_subscribe, query_then_rearm])
def test_the_check_detects_readers_that_miss_a_wake_up(
    reader: Callable[[Replica, WatchTarget, list[int]], Party],
) -> None:
    def make() -> list[Party]:
        replica = make_replica_with_crate()
        return [reader(replica, WATCHED["key"], []), apply_batches(replica)]

    assert [0] in list(run_every_interleaving(make))


def test_every_order_of_the_steps_is_tried_once() -> None:
    orders: list[str] = []

    def make() -> list[Party]:
        orders.append("")
        return [party("a"), party("b")]

    def party(name: str) -> Party:
        for _ in range(2):
            orders[-1] += name
            yield always

    assert list(run_every_interleaving(make)) == [[]] * 20  # Three steps each: the third one ends the generator.
    assert {"aabb", "abab", "abba", "baab", "baba", "bbaa"} == set(orders)
