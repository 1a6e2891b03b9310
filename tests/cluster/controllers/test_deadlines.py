"""The heap of deadlines behind heartbeats and locks."""

from wharf.cluster.controllers.deadlines import MAX_STALE_ENTRIES_RATIO, MIN_STALE_ENTRIES, NEVER_S, DeadlineHeap


def test_frequent_changes_do_not_grow_the_heap() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()

    for number in range(10_000):
        deadlines.set_deadline("a", 10.0 + number / 1_000)
        deadlines.set_deadline("b", 10.0 + number / 1_000)

    assert (len(deadlines), deadlines.entry_count <= 100) == (2, True)


def test_late_keys_are_taken_in_the_order_of_their_deadlines() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()
    for key, deadline_s in (("b", 2.0), ("c", 9.0), ("a", 1.0), ("b", 3.0)):
        deadlines.set_deadline(key, deadline_s)

    assert (deadlines.take_late(5.0), "b" in deadlines, deadlines.next_deadline_s()) == (["a", "b"], False, 9.0)


def test_listed_keys_keep_their_deadline() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()
    deadlines.set_deadline("a", 1.0)

    assert [deadlines.list_late(now_s) for now_s in (0.9, 1.0, 2.0)] == [[], ["a"], ["a"]]


def test_the_heap_is_rebuilt_when_it_has_too_many_stale_entries_and_keeps_the_valid_ones() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()
    deadlines.set_deadline("b", 2.0)
    max_entries = 2 * MAX_STALE_ENTRIES_RATIO + MIN_STALE_ENTRIES

    for number in range(max_entries - 1):
        deadlines.set_deadline("a", 1_000.0 - number)
    before = deadlines.entry_count
    deadlines.set_deadline("a", 1.0)

    assert (before, deadlines.entry_count) == (max_entries, 2)
    assert deadlines.take_late(1_000.0) == ["a", "b"]


def test_a_key_is_late_from_its_deadline_on() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()
    deadlines.set_deadline("a", 1.0)

    assert [deadlines.is_late("a", now_s) for now_s in (0.9, 1.0, 1.1)] == [False, True, True]
    assert not deadlines.is_late("unknown", 1e9)


def test_a_removed_key_has_no_deadline() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()
    for key, deadline_s in (("a", 1.0), ("b", 2.0)):
        deadlines.set_deadline(key, deadline_s)

    deadlines.remove("a")
    deadlines.remove("unknown")

    assert ("a" in deadlines, "b" in deadlines, len(deadlines)) == (False, True, 1)
    assert (deadlines.next_deadline_s(), deadlines.list_late(9.0), deadlines.take_late(9.0)) == (2.0, ["b"], ["b"])
    assert deadlines.next_deadline_s() == NEVER_S


def test_only_keys_whose_deadline_has_passed_are_listed_and_taken() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()
    for key, deadline_s in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        deadlines.set_deadline(key, deadline_s)

    assert sorted(deadlines.list_late(2.0)) == ["a", "b"]
    assert deadlines.take_late(2.0) == ["a", "b"]
    assert deadlines.next_deadline_s() == 3.0
