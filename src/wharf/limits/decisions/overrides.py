"""Overrides by operators: grants, and the switch that turns all limits off for a time.

A process that receives an override writes it to the override store, where the other processes on the same store read
it. Grants are also stored in a file, so that they survive a restart. The limiter applies grants; the decision service
checks whether limits are off.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from wharf.limits.core.limiter import Grant
from wharf.limits.stores.port import OverrideStore, StoreUnavailable
from wharf.world.durable_file import replace_file

log = logging.getLogger(__name__)

GRANT_PREFIX: Final = "grant "
_GRANTS_DECODER: Final = msgspec.json.Decoder(list[Grant])
_GRANT_DECODER: Final = msgspec.json.Decoder(Grant)


class InvalidGrantsFile(Exception):
    """The grants file cannot be read. The text is the error message for the operator."""


class GrantsNotSaved(Exception):
    """The grants file cannot be written, so that nothing was changed. The text is the error message for the operator."""


def build_grant_name(grant: Grant) -> str:
    """Return the key of a grant in the override store. Equal grants have the same key in all processes."""
    return f"{GRANT_PREFIX}{grant.owner} {grant.resource} {grant.amount} {grant.until_ms}"


def decode_grant(data: bytes) -> Grant:
    return _GRANT_DECODER.decode(data)


class GrantFile:
    """The grants in force, in memory and, if `path` is not `None`, in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.grants: list[Grant] = []
        self._is_saved = True
        """Whether the file has these grants."""
        self._is_failure_logged = False

    def load(self, now_ms: int) -> None:
        """Read the grants that have not expired from the file, if there is one. Raises `InvalidGrantsFile`."""
        if self._path is None or not self._path.exists():
            return
        try:
            grants = _GRANTS_DECODER.decode(self._path.read_bytes())
        except msgspec.DecodeError as problem:
            raise InvalidGrantsFile(
                f"{self._path} is not a valid grants file: {problem}. Fix it or move it away."
            ) from None
        self.grants = [grant for grant in grants if now_ms < grant.until_ms]

    def store(self, grants: Sequence[Grant]) -> None:
        """Replace all grants by these in the file, then in memory. Raises `GrantsNotSaved`; then nothing has changed."""
        try:
            self._save(grants)
        except OSError as error:
            raise GrantsNotSaved(f"the file {self._path} cannot be written: {error.strerror or error}") from error
        self.grants = list(grants)

    def adopt(self, grants: Iterable[Grant]) -> None:
        """Replace all grants by these in memory, and in the file if it does not have them yet.

        For changes that are in force anyway: those of the override store, and expired grants. If the file cannot be
        written, this is logged once, and the next call tries again.
        """
        adopted = list(grants)
        if adopted != self.grants:
            self.grants = adopted
            self._is_saved = False
        if self._is_saved:
            return
        try:
            self._save(self.grants)
        except OSError as error:
            if not self._is_failure_logged:
                log.warning("grants not written to their file; trying again error=%s", error)
            self._is_failure_logged = True

    def drop_expired(self, now_ms: int) -> list[Grant]:
        """Delete expired grants, as `adopt` does, and return them."""
        ended = [grant for grant in self.grants if now_ms >= grant.until_ms]
        self.adopt(grant for grant in self.grants if grant not in ended)
        return ended

    def _save(self, grants: Sequence[Grant]) -> None:
        """Write grants to the file, which is replaced atomically: a crash leaves the old or the new one. Raises `OSError`."""
        if self._path is not None:
            replace_file(self._path, msgspec.json.encode(grants))
        self._is_saved, self._is_failure_logged = True, False


OFF_KEY: Final = "off"
REVOCATION_PREFIX: Final = "revoked "
MAX_SHARED_REVOCATIONS: Final = 10_000
"""Revocations in the override store; limits its size. The oldest ones are deleted."""
SHARED_REVOCATION_MS: Final = 24 * 3_600_000
"""How long revocations stay in the override store. A process that starts later has learned nothing before them."""


class OperatorOverrides:
    """The overrides of one process, kept equal to those in the override store.

    `apply` is called with all grants in force after each change. If `folder` is `None`, grants are in memory only.
    """

    def __init__(
        self, folder: Path | None, clock: Callable[[], int], apply: Callable[[Iterable[Grant]], object]
    ) -> None:
        self.grant_file: Final = GrantFile(folder / "grants.json" if folder is not None else None)
        self.off_until_ms = 0
        self.shared_overrides: OverrideStore | None = None
        """The override store; `None` if no other process shares the store."""
        self.on_revocation: Callable[[str, int], object] = lambda _subject, _at_ms: None
        """Called with the subject and the time of each revocation of another process."""
        self._shared_version = -1
        self._now_ms = clock
        self._apply = apply

    def open(self) -> None:
        """Load the grants of the file and apply them."""
        self.grant_file.load(self._now_ms())
        self._apply(self.grant_file.grants)

    @property
    def is_off(self) -> bool:
        return bool(self.off_until_ms) and self._now_ms() < self.off_until_ms

    async def add_grants(self, grants: Iterable[Grant]) -> None:
        """Add grants in this process and in the override store, and apply them.

        Raises `StoreUnavailable`, and `GrantsNotSaved` if only the file would keep them and it cannot be written.
        """
        new = list(grants)
        if self.shared_overrides is not None:
            for grant in new:
                if grant not in self.grant_file.grants:
                    await self.shared_overrides.write_override(build_grant_name(grant), msgspec.json.encode(grant))
        known = self.grant_file.grants
        self._replace_grants([*known, *(grant for grant in new if grant not in known)])

    async def revoke_grants(self, owner: str, resource: str | None) -> list[Grant]:
        """Delete the grants of an owner in this process and in the override store, and return them.

        `resource` limits this to one bucket; `None` means all. Raises `StoreUnavailable` and `GrantsNotSaved`, as
        `add_grants` does.
        """
        ended = [g for g in self.grant_file.grants if g.owner == owner and resource in (None, g.resource)]
        if self.shared_overrides is not None:
            for grant in ended:
                await self.shared_overrides.write_override(build_grant_name(grant), None)
        self._replace_grants([grant for grant in self.grant_file.grants if grant not in ended])
        return ended

    def _replace_grants(self, grants: list[Grant]) -> None:
        """Replace all grants by these and apply them. Raises `GrantsNotSaved` if only the file would keep them."""
        if self.shared_overrides is None:
            self.grant_file.store(grants)
        else:
            self.grant_file.adopt(grants)
        self._apply(self.grant_file.grants)

    async def set_off_until(self, until_ms: int) -> None:
        """Turn all limits off until a time in Unix milliseconds, in this process and in the override store; 0 turns them on.

        Raises StoreUnavailable.
        """
        if self.shared_overrides is not None:
            await self.shared_overrides.write_override(OFF_KEY, str(until_ms).encode())
        self.off_until_ms = until_ms

    async def sync_shared(self) -> None:
        """Apply the overrides in the override store, if they changed since the last call. Raises `StoreUnavailable`.

        If the override store has lost its data, write the overrides of this process to it instead.
        """
        if self.shared_overrides is None:
            return
        shared = await self.shared_overrides.read_overrides(self._shared_version)
        if shared is None:
            return
        version, entries = shared
        if version < max(1, self._shared_version):
            # The override store is empty or was lost: write the overrides of this process to it.
            for grant in self.grant_file.grants:
                await self.shared_overrides.write_override(build_grant_name(grant), msgspec.json.encode(grant))
            await self.shared_overrides.write_override(OFF_KEY, str(self.off_until_ms).encode())
            self._shared_version = 0
            return
        self._shared_version = version
        now_ms = self._now_ms()
        grants = [decode_grant(value) for name, value in entries.items() if name.startswith(GRANT_PREFIX)]
        self.grant_file.adopt(grant for grant in grants if now_ms < grant.until_ms)
        self._apply(self.grant_file.grants)
        await self._apply_revocations(entries, now_ms)
        off_until_ms = int(entries.get(OFF_KEY, b"0"))
        self.off_until_ms = off_until_ms if now_ms < off_until_ms else 0

    async def share_revocations(self, subjects: Iterable[str], at_ms: int) -> None:
        """Write revocations to the override store, for the other processes. Raises `StoreUnavailable`."""
        if self.shared_overrides is not None:
            for subject in subjects:
                await self.shared_overrides.write_override(f"{REVOCATION_PREFIX}{subject}", str(at_ms).encode())

    async def _apply_revocations(self, entries: Mapping[str, bytes], now_ms: int) -> None:
        """Apply the revocations of other processes, and delete old ones from the override store."""
        revocations = sorted(
            (int(value), name)
            for name, value in entries.items()
            if name.startswith(REVOCATION_PREFIX) and value.isdigit()
        )
        surplus = len(revocations) - MAX_SHARED_REVOCATIONS
        for index, (at_ms, name) in enumerate(revocations):
            self.on_revocation(name.removeprefix(REVOCATION_PREFIX), at_ms)
            if (index < surplus or now_ms - at_ms > SHARED_REVOCATION_MS) and self.shared_overrides is not None:
                await self.shared_overrides.write_override(name, None)

    def drop_expired_grants(self, now_ms: int) -> list[Grant]:
        """Delete expired grants of this process, pass the others to the limiter, and return the deleted ones.

        They stay in the override store until `remove_shared_grants` is called with them.
        """
        ended = self.grant_file.drop_expired(now_ms)
        if ended:
            self._apply(self.grant_file.grants)
        return ended

    async def remove_shared_grants(self, grants: Iterable[Grant]) -> None:
        """Delete expired grants from the override store. Failures are ignored: every process checks the expiry itself."""
        if self.shared_overrides is not None:
            with contextlib.suppress(StoreUnavailable):
                for grant in grants:
                    await self.shared_overrides.write_override(build_grant_name(grant), None)

    def end_expired_off(self, now_ms: int) -> bool:
        """Turn limits on again if the time for which they were off is over. Return whether this call turned them on."""
        if not self.off_until_ms or now_ms < self.off_until_ms:
            return False
        self.off_until_ms = 0
        return True
