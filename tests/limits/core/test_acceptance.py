"""Accepted credentials, counts of new ones, and revocations: limits of their number and their time."""

import pytest

from wharf.limits.core.callers.acceptance import (
    HOUR_MS,
    AcceptedCredentials,
    NewCredentialCounts,
    Revocations,
    proves_credential,
)

NOON_MS = 1_800_000_000_000 // HOUR_MS * HOUR_MS


@pytest.mark.parametrize(
    ("status", "is_proof"),
    [
        *((status, True) for status in (101, 200, 201, 204, 206, 299, 304, 403, 404, 409, 410, 412, 416, 422)),
        *(
            (status, False)
            for status in (100, 301, 302, 303, 307, 400, 401, 405, 407, 413, 414, 429, 431, 500, 502, 503)
        ),
    ],
)
def test_only_some_statuses_prove_a_credential(status: int, is_proof: bool) -> None:
    assert proves_credential(status) is is_proof


def test_a_full_table_loses_the_credentials_with_the_oldest_proof() -> None:
    accepted = AcceptedCredentials(max_entries=300, lifetime_ms=HOUR_MS)
    for number in range(300):
        accepted.accept(f"k{number}", NOON_MS)
    accepted.accept("k0", NOON_MS + 1)
    accepted.accept("new", NOON_MS + 2)

    assert [accepted.is_accepted(key, NOON_MS) for key in ("k0", "k1", "k256", "k299", "new")] == [
        True,
        False,
        False,
        True,
        True,
    ]


def test_a_proof_is_stored_again_after_half_of_the_lifetime() -> None:
    accepted = AcceptedCredentials(max_entries=9, lifetime_ms=HOUR_MS)
    accepted.accept("k", NOON_MS)

    assert [accepted.needs_renewal("k", NOON_MS + step) for step in (0, HOUR_MS // 2, HOUR_MS // 2 + 1)] == [
        False,
        False,
        True,
    ]


def test_saved_credentials_live_no_longer_than_the_lifetime() -> None:
    accepted = AcceptedCredentials(max_entries=9, lifetime_ms=HOUR_MS)
    accepted.load_all([("ended", NOON_MS), ("valid", NOON_MS + 5), ("long", NOON_MS + 99 * HOUR_MS)], NOON_MS)

    assert accepted.copy_entries() == [("valid", NOON_MS + 5), ("long", NOON_MS + HOUR_MS)]


def test_a_removed_credential_is_unknown_and_each_change_has_a_version() -> None:
    accepted = AcceptedCredentials(max_entries=9, lifetime_ms=HOUR_MS)
    versions = [accepted.version]
    accepted.accept("k", NOON_MS)
    versions.append(accepted.version)
    for _ in range(2):
        accepted.remove("k")
        versions.append(accepted.version)

    assert versions == [0, 1, 2, 2]
    assert not accepted.is_accepted("k", NOON_MS)


def test_new_credentials_are_counted_by_address_and_hour() -> None:
    counts = NewCredentialCounts(2)
    exhausted = []
    for step_ms in (0, 1, 2, HOUR_MS):
        exhausted.append(counts.is_exhausted("a", NOON_MS + step_ms))
        counts.add("a", NOON_MS + step_ms)

    assert exhausted == [False, False, True, False]
    assert not counts.is_exhausted("b", NOON_MS)


def test_only_the_last_revocation_of_a_subject_counts() -> None:
    revocations = Revocations()

    assert [revocations.add("user:ada", at_ms) for at_ms in (5, 5, 4, 6)] == [True, False, False, True]
    assert [revocations.get_ms(subject) for subject in ("user:ada", "user:eve")] == [6, -1]
