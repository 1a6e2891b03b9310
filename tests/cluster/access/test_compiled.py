"""Rights are kept by what they come from, and only so many of them."""

from wharf.cluster.access import get_rights
from wharf.cluster.access.rights import MAX_CACHED_CHARACTERS, MAX_CACHED_RIGHTS, RightsCache

READ = 'agent { policy = "read" }'
WRITE = 'agent { policy = "write" }'


def test_the_same_policies_give_the_same_rights_in_any_order() -> None:
    assert get_rights([READ, WRITE]) is get_rights([WRITE, READ, WRITE])
    assert get_rights([READ]) is not get_rights([WRITE])


def test_only_so_many_are_kept_and_those_used_last_stay() -> None:
    compiled = RightsCache()
    first = compiled.get([READ])
    for number in range(MAX_CACHED_RIGHTS - 1):
        compiled.get([f"{WRITE} # {number}"])
    assert compiled.get([READ]) is first
    compiled.get([WRITE])

    assert compiled.get([READ]) is first
    assert len(compiled._kept) == MAX_CACHED_RIGHTS


def test_what_is_kept_is_bounded_by_its_weight_too() -> None:
    compiled = RightsCache()
    long = " " * 250_000
    for number in range(2 * MAX_CACHED_CHARACTERS // len(long)):
        compiled.get([f"{READ} # {number}{long}"])

    assert sum(len(text) for key in compiled._kept for text in key) <= MAX_CACHED_CHARACTERS
