"""The heap of deadlines behind heartbeats and locks."""

from wharf.cluster.controllers.deadlines import DeadlineHeap


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
