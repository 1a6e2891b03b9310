"""Expiry deadlines of variable locks."""

from wharf.cluster.controllers.deadlines import NEVER_S
from wharf.cluster.controllers.locks import HeldLock, LockDeadlines

SECOND = 1_000_000_000
DB = HeldLock("default", "db", "one")


def make_locks(ttl_s: int = 10, *, at_s: float = 0.0) -> LockDeadlines:
    locks = LockDeadlines()
    locks.update_lock("default", "db", "one", ttl_s * SECOND, at_s)
    return locks


def test_a_lock_expires_when_its_ttl_has_passed_and_not_before() -> None:
    locks = make_locks()

    assert (locks.list_expired(9.9), locks.list_expired(10.0)) == ([], [DB])


def test_a_renewed_lock_has_its_whole_ttl_again() -> None:
    locks = make_locks()
    locks.update_lock("default", "db", "one", 10 * SECOND, 9.0)

    assert (locks.list_expired(18.9), locks.list_expired(19.0)) == ([], [DB])


def test_an_expired_lock_is_returned_until_it_is_released() -> None:
    locks = make_locks()
    assert (locks.list_expired(11.0), locks.list_expired(12.0)) == ([DB], [DB])

    locks.update_lock("default", "db", "", 0, 12.0)

    assert (locks.list_expired(13.0), locks.next_deadline_s()) == ([], NEVER_S)


def test_a_lock_of_another_holder_replaces_the_previous_one() -> None:
    locks = make_locks()
    locks.update_lock("default", "db", "two", 10 * SECOND, 5.0)

    assert locks.list_expired(10.0) == []
    assert locks.list_expired(15.0) == [HeldLock("default", "db", "two")]


def test_the_next_deadline_is_that_of_the_lock_that_expires_first() -> None:
    locks = make_locks()
    locks.update_lock("default", "other", "x", 3 * SECOND, 0.0)

    assert locks.next_deadline_s() == 3.0


def test_a_lock_that_is_renewed_repeatedly_does_not_grow_the_heap() -> None:
    locks = LockDeadlines()
    for second in range(10_000):
        locks.update_lock("default", "db", "one", 10 * SECOND, float(second))

    assert locks.entry_count < 200


def test_only_the_lock_that_has_passed_its_deadline_is_expired() -> None:
    locks = make_locks()
    former = HeldLock("default", "db", "former")

    assert [locks.is_expired(DB, now_s) for now_s in (9.9, 10.0, 11.0)] == [False, True, True]
    assert not locks.is_expired(former, 11.0)


def test_a_released_lock_is_not_expired() -> None:
    locks = make_locks()
    locks.update_lock("default", "db", "", 0, 5.0)

    assert not locks.is_expired(DB, 11.0)


def test_locks_of_equal_paths_in_two_namespaces_are_different() -> None:
    locks = make_locks()
    locks.update_lock("other", "db", "one", 20 * SECOND, 0.0)

    assert locks.list_expired(10.0) == [DB]
    assert locks.list_expired(20.0) == [DB, HeldLock("other", "db", "one")]
