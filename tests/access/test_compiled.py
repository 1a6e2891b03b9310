"""Rights are kept by what they come from, and only so many of them."""

from wharf.access import rights_of
from wharf.access.compiled import KEPT_CHARACTERS_MAX, KEPT_MAX, CompiledRights

READ = 'agent { policy = "read" }'
WRITE = 'agent { policy = "write" }'


def test_the_same_policies_give_the_same_rights_in_any_order() -> None:
    assert rights_of([READ, WRITE]) is rights_of([WRITE, READ, WRITE])
    assert rights_of([READ]) is not rights_of([WRITE])


def test_only_so_many_are_kept_and_those_used_last_stay() -> None:
    compiled = CompiledRights()
    first = compiled.of([READ])
    for number in range(KEPT_MAX - 1):
        compiled.of([f"{WRITE} # {number}"])
    assert compiled.of([READ]) is first
    compiled.of([WRITE])

    assert compiled.of([READ]) is first
    assert len(compiled._kept) == KEPT_MAX


def test_what_is_kept_is_bounded_by_its_weight_too() -> None:
    compiled = CompiledRights()
    long = " " * 250_000
    for number in range(2 * KEPT_CHARACTERS_MAX // len(long)):
        compiled.of([f"{READ} # {number}{long}"])

    assert sum(len(text) for key in compiled._kept for text in key) <= KEPT_CHARACTERS_MAX
