"""No interleaving of subscribing, reading and applying lets a waiter sleep on what it waits for.

Each party is a generator that pauses wherever another could go on; every order of their steps is tried.
"""

from collections.abc import Callable, Generator, Iterator

import pytest

from tests.cluster.state.inventory import (
    CRATES,
    CRATES_BY_COLOUR,
    CRATES_OF_OWNER,
    Crate,
    a_batch,
    a_crate,
    a_replica,
    a_row,
)
from wharf.cluster.state import Replica, ReplicaLoad, WatchTarget
from wharf.cluster.state.watches import watch_index, watch_key, watch_prefix, watch_table
from wharf.contract.model.log import LogPosition

Party = Generator[Callable[[], bool], None, None]
"""Yields, between two steps, whether the next one may be taken."""

WANTED = 3
"""The version that a waiter waits for: that of the last write."""


def always() -> bool:
    return True


def a_reader(replica: Replica, watched: WatchTarget, seen: list[int]) -> Party:
    """A blocking query: subscribe, read, wait, read again."""
    subscription = replica.watches.subscribe([watched], lambda: None)
    yield always
    while True:
        subscription.rearm()
        yield always
        crate = replica.get(CRATES, "north", "a")
        if crate is not None and crate.modify_index >= WANTED:
            break
        yield lambda: subscription.has_fired
    subscription.close()
    seen.append(crate.modify_index)


def a_reader_that_subscribes_too_late(replica: Replica, watched: WatchTarget, seen: list[int]) -> Party:
    crate = replica.get(CRATES, "north", "a")
    yield always
    if crate is None or crate.modify_index < WANTED:
        subscription = replica.watches.subscribe([watched], lambda: None)
        yield lambda: subscription.has_fired
        crate = replica.get(CRATES, "north", "a")
    assert crate is not None
    seen.append(crate.modify_index)


def a_reader_that_rearms_after_it_reads(replica: Replica, watched: WatchTarget, seen: list[int]) -> Party:
    subscription = replica.watches.subscribe([watched], lambda: None)
    yield always
    while True:
        crate = replica.get(CRATES, "north", "a")
        if crate is not None and crate.modify_index >= WANTED:
            break
        yield always
        subscription.rearm()
        yield lambda: subscription.has_fired
    seen.append(crate.modify_index)


def a_feed(replica: Replica) -> Party:
    for index in (2, 3):
        yield always
        replica.apply_batch(a_batch(index, CRATES.build_put(the_crate(index))))


def the_last_batch(replica: Replica) -> Party:
    yield always
    replica.apply_batch(a_batch(WANTED, CRATES.build_put(the_crate(WANTED))))


def a_load(replica: Replica) -> Party:
    """The feed broke off; the state is loaded, in slices and steps, and the feed goes on."""
    loading = ReplicaLoad(replica)
    for index, crate in ((2, the_crate(2)), (1, a_crate("z", colour="blue"))):
        yield always
        loading.add_records([a_row(CRATES, index, crate)])
    finishing = loading.finish_in_steps(LogPosition(2, {"crates": 2}))
    yield always
    for _ in finishing:
        yield always
    replica.apply_batch(a_batch(3, CRATES.build_put(the_crate(3))))


def the_crate(index: int) -> Crate:
    """It changes its colour with each write: a watched value may be the old or the new one."""
    return a_crate("a", owner="ann", colour={1: "blue", 2: "green", 3: "red"}[index])


def a_replica_with_the_crate() -> Replica:
    replica = a_replica()
    replica.apply_batch(a_batch(1, CRATES.build_put(the_crate(1)), CRATES.build_put(a_crate("b", colour="blue"))))
    return replica


def every_interleaving(make: Callable[[], list[Party]]) -> Iterator[list[int]]:
    """Run the parties in every order of their steps; yields those that can never go on, for each order.

    Generators cannot be copied, so each order is played from the beginning. `choices` is the order: which of the
    parties that could go on did so, at each step.
    """
    choices: list[int] = []
    while True:
        parties = make()
        ready: dict[int, Callable[[], bool]] = dict.fromkeys(range(len(parties)), always)
        widths: list[int] = []
        while able := [number for number, may_go_on in ready.items() if may_go_on()]:
            step = len(widths)
            if step == len(choices):
                choices.append(0)
            widths.append(len(able))
            party = able[choices[step]]
            try:
                ready[party] = next(parties[party])
            except StopIteration:
                del ready[party]
        yield list(ready)
        while choices and choices[-1] + 1 == widths[len(choices) - 1]:
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


@pytest.mark.parametrize("writer", [a_feed, a_load])
@pytest.mark.parametrize("watched", WATCHED.values(), ids=WATCHED.keys())
def test_a_reader_that_subscribes_before_it_reads_always_sees_the_last_write(
    watched: WatchTarget, writer: Callable[[Replica], Party]
) -> None:
    seen: list[int] = []

    def make() -> list[Party]:
        replica = a_replica_with_the_crate()
        return [a_reader(replica, watched, seen), writer(replica)]

    orders = list(every_interleaving(make))

    assert [[]] * len(orders) == orders
    assert [WANTED] * len(orders) == seen


def test_two_readers_never_take_each_others_wake_up() -> None:
    seen: list[int] = []

    def make() -> list[Party]:
        replica = a_replica_with_the_crate()
        readers = [a_reader(replica, WATCHED["key"], seen), a_reader(replica, WATCHED["prefix"], seen)]
        return [*readers, the_last_batch(replica)]

    orders = list(every_interleaving(make))

    assert [[]] * len(orders) == orders
    assert [WANTED] * 2 * len(orders) == seen


@pytest.mark.parametrize("reader", [a_reader_that_subscribes_too_late, a_reader_that_rearms_after_it_reads])
def test_the_proof_finds_readers_that_sleep_for_ever(
    reader: Callable[[Replica, WatchTarget, list[int]], Party],
) -> None:
    def make() -> list[Party]:
        replica = a_replica_with_the_crate()
        return [reader(replica, WATCHED["key"], []), a_feed(replica)]

    assert [0] in list(every_interleaving(make))


def test_every_order_of_the_steps_is_tried_once() -> None:
    orders: list[str] = []

    def make() -> list[Party]:
        orders.append("")
        return [party("a"), party("b")]

    def party(name: str) -> Party:
        for _ in range(2):
            orders[-1] += name
            yield always

    assert list(every_interleaving(make)) == [[]] * 20  # Three steps each: the third finds the end.
    assert {"aabb", "abab", "abba", "baab", "baba", "bbaa"} == set(orders)
