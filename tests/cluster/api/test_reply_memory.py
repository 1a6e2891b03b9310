"""The memory of large lists: counted while something refers to their body, and limited over all replies."""

import pytest

from wharf.cluster.api.held_memory import HeldMemory
from wharf.cluster.api.replies.encoding import ReplyBody, make_reply_memory
from wharf.contract.model.refusal import Overloaded


def test_the_memory_of_a_list_is_free_when_nothing_refers_to_its_body() -> None:
    memory = make_reply_memory(1_000)
    held = HeldMemory(memory)
    held.grow(600)
    body: ReplyBody | None = ReplyBody((b"x" * 600,), held)
    del held
    used = memory.used_bytes
    body = None

    assert (used, memory.used_bytes, body) == (600, 0, None)


@pytest.mark.parametrize(("used", "size", "is_refused"), [(600, 400, False), (600, 401, True), (1, 1_000, True)])
def test_a_list_beyond_the_limit_is_refused_beside_others(used: int, size: int, *, is_refused: bool) -> None:
    memory = make_reply_memory(1_000)
    other, held = HeldMemory(memory), HeldMemory(memory)
    other.grow(used)
    if is_refused:
        with pytest.raises(Overloaded, match="lists that are built or sent take 1000 bytes"):
            held.grow(size)
    else:
        held.grow(size)

    assert memory.used_bytes == used + (0 if is_refused else size)


def test_a_single_list_may_be_larger_than_the_limit() -> None:
    memory = make_reply_memory(1_000)
    held = HeldMemory(memory)
    for _ in range(5):
        held.grow(400)

    assert memory.used_bytes == 2_000
