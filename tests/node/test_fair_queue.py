"""The order of items that wait for a place, and their limits."""

from random import Random

import pytest

from wharf.node.fair_queue import FairQueue, ItemOwner, Level, QueueFull


def build_queue(*, running: tuple[int, int, int, int] = (8, 6, 3, 2), waiting: int = 100) -> FairQueue[str]:
    return FairQueue([Level(max_running, waiting) for max_running in running])


def take_all(queue: FairQueue[str]) -> list[str]:
    """Return the items that run next, each after the end of the one before."""
    items = []
    while (taken := queue.take()) is not None:
        items.append(taken[1])
        queue.finish(taken[0])
    return items


def test_namespaces_then_jobs_then_allocations_take_turns() -> None:
    queue = build_queue()
    for item in ("a1x", "a1x", "a1x", "a1y", "a2x", "b1x", "b1x"):
        queue.add(ItemOwner(*item), item)

    assert take_all(queue) == ["a1x", "b1x", "a2x", "b1x", "a1y", "a1x", "a1x"]


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        (["a1x"] * 9, 2),
        (["a1x"] * 9 + ["a1y"] * 9, 3),
        ([f"a{job}x" for job in range(9) for _ in range(9)], 6),
        ([f"{namespace}1x" for namespace in "abcdefghi" for _ in range(9)], 8),
    ],
    ids=["allocation", "job", "namespace", "all"],
)
def test_an_owner_has_only_its_share_of_the_places(owners: list[str], expected: int) -> None:
    queue = build_queue()
    for owner in owners:
        queue.add(ItemOwner(*owner), owner)

    taken = 0
    while queue.take() is not None:
        taken += 1

    assert taken == expected


def test_a_free_place_is_for_the_namespace_with_the_fewest_running_items() -> None:
    queue = build_queue()
    for job in "12345":
        queue.add(ItemOwner("a", job, "x"), "a")
        assert queue.take() is not None
    queue.add(ItemOwner("a", "6", "x"), "a")
    queue.add(ItemOwner("b", "1", "x"), "b")

    assert queue.take() == (ItemOwner("b", "1", "x"), "b")


def test_a_removed_item_is_never_taken() -> None:
    queue = build_queue()
    owner = ItemOwner("a", "1", "x")
    queue.add(owner, "first")
    queue.add(owner, "second")

    assert (queue.remove(owner, "first"), queue.remove(owner, "first")) == (True, False)
    assert take_all(queue) == ["second"]


@pytest.mark.parametrize(
    ("owner", "name"), [("a1x", "the allocation"), ("a1y", "the job"), ("a2x", "the namespace"), ("b1x", "the node")]
)
def test_an_item_above_the_limit_of_its_owner_is_refused_and_changes_nothing(owner: str, name: str) -> None:
    depth = ("b1x", "a2x", "a1y", "a1x").index(owner)
    queue: FairQueue[str] = FairQueue([Level(1, 2 if level == depth else 9) for level in range(4)])
    for _ in range(2):
        queue.add(ItemOwner("a", "1", "x"), "item")

    with pytest.raises(QueueFull, match=f"2 of {name} wait already"):
        queue.add(ItemOwner(*owner), "refused")
    assert take_all(queue) == ["item", "item"]


def test_an_empty_queue_keeps_nothing_about_former_owners() -> None:
    queue, random = build_queue(), Random(1)
    running: list[ItemOwner] = []
    for _ in range(1_000):
        owner = ItemOwner(*(random.choice("abc") for _ in range(3)))
        match random.randrange(3):
            case 0 if taken := queue.take():
                running.append(taken[0])
            case 1 if running:
                queue.finish(running.pop())
            case _:
                queue.add(owner, "item")
                if random.random() < 0.5:
                    queue.remove(owner, "item")
    for owner in running:
        queue.finish(owner)
    take_all(queue)

    assert (queue._root.running, queue._root.waiting, queue._root.children) == (0, 0, {})
