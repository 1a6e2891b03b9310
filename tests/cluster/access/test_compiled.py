"""The cache of rights: its key is the texts of the policies, and its size is limited."""

from wharf.cluster.access import get_rights
from wharf.cluster.access.rights import MAX_CACHED_CHARACTERS, MAX_CACHED_RIGHTS, RightsCache

READ = 'agent { policy = "read" }'
WRITE = 'agent { policy = "write" }'


def test_the_same_policies_give_the_same_rights_in_any_order() -> None:
    assert get_rights([READ, WRITE]) is get_rights([WRITE, READ, WRITE])
    assert get_rights([READ]) is not get_rights([WRITE])


def test_the_cache_is_limited_and_keeps_the_most_recently_used_rights() -> None:
    compiled = RightsCache()
    first = compiled.get([READ])
    for number in range(MAX_CACHED_RIGHTS - 1):
        compiled.get([f"{WRITE} # {number}"])
    assert compiled.get([READ]) is first
    compiled.get([WRITE])

    assert compiled.get([READ]) is first
    assert len(compiled._cached) == MAX_CACHED_RIGHTS


def test_the_cache_is_limited_by_the_size_of_its_texts() -> None:
    compiled = RightsCache()
    long = " " * 250_000
    for number in range(2 * MAX_CACHED_CHARACTERS // len(long)):
        compiled.get([f"{READ} # {number}{long}"])

    assert sum(len(text) for key in compiled._cached for text in key) <= MAX_CACHED_CHARACTERS
