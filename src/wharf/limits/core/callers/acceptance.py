"""Which unlisted credentials the service has accepted, and what its replies prove. Decision record 0216.

Credentials occur only as keyed hashes. Time is passed in.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.caller import Caller

HOUR_MS: Final = 3_600_000
MAX_COUNTED_ADDRESSES: Final = 65_536
"""Addresses with a count of new credentials; limits memory. The oldest counts of a full table are removed."""
_PROVING_STATUSES: Final = frozenset({101, 304, 403, 404, 409, 410, 412, 416, 422})
_SESSION_STATUSES: Final = frozenset({101, 304})
UNAUTHORIZED: Final = 401


class CredentialProof(msgspec.Struct, frozen=True, eq=False):
    """What the reply to a request can prove about its credential."""

    key: str
    address: Caller
    """The anonymous caller at the address of the request."""
    can_prove: bool
    """Whether a reply other than 401 shows that the service has accepted the credential."""
    began_ms: int
    is_resolved: bool = False
    """Whether the owner of the credential is known. A 401 is then no failed login, but the answer may be out of date."""
    is_session: bool = False
    """Whether the request has only session cookies. A 401 is then no failed login: the session may have ended."""


def proves_credential(status: int, *, is_session: bool = False) -> bool:
    """Return whether a reply with this status shows that the service has accepted the credential of the request.

    Hosts redirect strangers to a login page, and proxies send 400, 413, 429 and 5xx without a look at the credential.
    An unknown session is a stranger, which hosts may also answer with 403 or 404.
    """
    if is_session:
        return 200 <= status < 300 or status in _SESSION_STATUSES
    return 200 <= status < 300 or status in _PROVING_STATUSES


class AcceptedCredentials:
    """The accepted credentials, each with the time until which it counts by its own hash. A full table loses the oldest."""

    def __init__(self, *, max_entries: int, lifetime_ms: int) -> None:
        self._until_ms: BoundedCache[str, int] = BoundedCache(max_entries)
        self._lifetime_ms = lifetime_ms
        self.version = 0
        """Increases with each change, so that a change can be saved."""

    def __len__(self) -> int:
        return len(self._until_ms)

    def is_accepted(self, key: str, now_ms: int) -> bool:
        until_ms = self._until_ms.get(key)
        return until_ms is not None and now_ms < until_ms

    def needs_renewal(self, key: str, now_ms: int) -> bool:
        """Return whether less than half of the lifetime is left, so that a further proof should be stored."""
        return self._until_ms.get(key, 0) - now_ms < self._lifetime_ms // 2

    def accept(self, key: str, now_ms: int) -> int:
        """Store that a credential was accepted now. Return until when."""
        return self.load(key, now_ms + self._lifetime_ms)

    def load(self, key: str, until_ms: int) -> int:
        """Store until when a credential is accepted, and return it."""
        self._until_ms.pop(key, None)  # The order of the table is the order of proofs.
        self.version += 1
        return self._until_ms.store(key, until_ms)

    def remove(self, key: str) -> bool:
        """Make a credential unknown again. Return whether it was accepted."""
        is_removed = self._until_ms.pop(key, None) is not None
        self.version += is_removed
        return is_removed

    def copy_entries(self) -> list[tuple[str, int]]:
        """Return all entries, each with the time until which it is accepted, the oldest proof first. This takes 20 ms for a million."""
        return list(self._until_ms.items())

    def load_all(self, entries: Iterable[tuple[str, int]], now_ms: int) -> None:
        """Restore entries of `copy_entries` that are still accepted."""
        for key, until_ms in entries:
            if now_ms < until_ms:
                self.load(key, min(until_ms, now_ms + self._lifetime_ms))


class NewCredentialCounts:
    """How many new credentials each address has shown in the current hour."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: BoundedCache[str, tuple[int, int]] = BoundedCache(MAX_COUNTED_ADDRESSES)

    def is_exhausted(self, address: str, now_ms: int) -> bool:
        """Return whether the address has shown the maximum number of new credentials in this hour."""
        hour, count = self._counts.get(address, (0, 0))
        return hour == now_ms // HOUR_MS and count >= self._limit

    def exhaust(self, address: str, now_ms: int) -> None:
        """Count no further credential of the address in this hour: other processes have counted the maximum."""
        self._counts.pop(address, None)
        self._counts.store(address, (now_ms // HOUR_MS, self._limit))

    def add(self, address: str, now_ms: int) -> None:
        """Count a new credential of the address."""
        current_hour = now_ms // HOUR_MS
        hour, count = self._counts.get(address, (0, 0))
        entry = (current_hour, count + 1 if hour == current_hour else 1)
        if address in self._counts:
            self._counts[address] = entry
        else:
            self._counts.store(address, entry)


MAX_REVOCATIONS: Final = 100_000
"""Revocations that are remembered; limits memory. The oldest ones of a full table are removed."""


class Revocations:
    """When credentials and users were revoked. What was learned about them before does not count any more."""

    def __init__(self) -> None:
        self._at_ms: BoundedCache[str, int] = BoundedCache(MAX_REVOCATIONS)

    def add(self, subject: str, at_ms: int) -> bool:
        """Store when a subject, such as `user:ada`, was revoked. Return whether this is new."""
        if self._at_ms.get(subject, -1) >= at_ms:
            return False
        self._at_ms.pop(subject, None)
        self._at_ms.store(subject, at_ms)
        return True

    def get_ms(self, subject: str) -> int:
        """Return when a subject was revoked last; -1 if it was not."""
        return self._at_ms.get(subject, -1)

    def list_since(self, since_ms: int) -> list[tuple[str, int]]:
        """Return the subjects that were revoked from this time on."""
        return [(subject, at_ms) for subject, at_ms in self._at_ms.items() if at_ms >= since_ms]


def name_credential(key: str) -> str:
    """Return the subject of a credential, by its keyed hash."""
    return f"credential:{key}"


def name_user(login: str) -> str:
    """Return the subject of a user, in lower case."""
    return f"user:{login.lower()}"
