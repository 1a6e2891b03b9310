"""Which locks are renewed, and which have been silent for too long."""

from wharf.cluster.controllers.locks import NEVER_S, HeldLock, LockDeadlines

SECOND = 1_000_000_000
DB = HeldLock("default", "db", "one")


def held(ttl_s: int = 10, *, at_s: float = 0.0) -> LockDeadlines:
    locks = LockDeadlines()
    locks.update_lock("default", "db", "one", ttl_s * SECOND, at_s)
    return locks


def test_a_lock_expires_when_its_time_is_over_and_not_before() -> None:
    locks = held()

    assert (locks.list_expired(9.9), locks.list_expired(10.0)) == ([], [DB])


def test_a_lock_that_is_heard_of_again_has_its_whole_time() -> None:
    locks = held()
    locks.update_lock("default", "db", "one", 10 * SECOND, 9.0)

    assert (locks.list_expired(18.9), locks.list_expired(19.0)) == ([], [DB])


def test_an_expired_lock_is_told_until_it_is_gone() -> None:
    locks = held()
    assert (locks.list_expired(11.0), locks.list_expired(12.0)) == ([DB], [DB])

    locks.update_lock("default", "db", "", 0, 12.0)

    assert (locks.list_expired(13.0), locks.next_deadline_s()) == ([], NEVER_S)


def test_a_lock_of_somebody_else_takes_the_place_of_the_one_before() -> None:
    locks = held()
    locks.update_lock("default", "db", "two", 10 * SECOND, 5.0)

    assert locks.list_expired(10.0) == []
    assert locks.list_expired(15.0) == [HeldLock("default", "db", "two")]


def test_the_next_deadline_is_that_of_the_lock_that_ends_first() -> None:
    locks = held()
    locks.update_lock("default", "other", "x", 3 * SECOND, 0.0)

    assert locks.next_deadline_s() == 3.0


def test_a_lock_that_is_renewed_for_ever_leaves_nothing_behind() -> None:
    locks = LockDeadlines()
    for second in range(10_000):
        locks.update_lock("default", "db", "one", 10 * SECOND, float(second))

    assert len(locks._heap) < 200
