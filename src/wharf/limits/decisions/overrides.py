"""Overrides by operators: grants, bans, and the switch that turns all limits off for a time.

A process that receives an override writes it to the override store, where the other processes on the same store read
it. Grants and bans are also stored in files, so that they survive a restart. The limiter applies grants; the decision service
checks bans of users, and whether limits are off.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from wharf.limits.core.counting.bans import USER_PREFIX, OperatorBan
from wharf.limits.core.limiter import Grant
from wharf.limits.stores.port import OverrideStore, StoreUnavailable
from wharf.world.durable_file import replace_file

log = logging.getLogger(__name__)

R = TypeVar("R", Grant, OperatorBan)

GRANT_PREFIX: Final = "grant "
BAN_PREFIX: Final = "ban "
MAX_BANS: Final = 10_000
"""Bans by operators that are in force; limits memory, and the size of the override store."""
_GRANT_DECODER: Final = msgspec.json.Decoder(Grant)
_BAN_DECODER: Final = msgspec.json.Decoder(OperatorBan)


class InvalidOverrideFile(Exception):
    """The file of grants or bans cannot be read. The text is the error message for the operator."""


class OverridesNotSaved(Exception):
    """The file of grants or bans cannot be written, so that nothing was changed. The text is the message for the operator."""


class TooManyBans(Exception):
    """Operators have banned `MAX_BANS` subjects already. The text is the message for the operator."""


def build_grant_name(grant: Grant) -> str:
    """Return the key of a grant in the override store. Equal grants have the same key in all processes."""
    return f"{GRANT_PREFIX}{grant.owner} {grant.resource} {grant.amount} {grant.until_ms}"


def build_ban_name(subject: str) -> str:
    """Return the key of the ban of a subject in the override store."""
    return f"{BAN_PREFIX}{subject}"


def decode_grant(data: bytes) -> Grant:
    return _GRANT_DECODER.decode(data)


class OverrideFile(Generic[R]):
    """The grants or the bans in force, in memory and, if `path` is not `None`, in a file. `noun` names them in messages."""

    def __init__(self, path: Path | None, entry_type: type[R], noun: str) -> None:
        self._path = path
        self._decoder: msgspec.json.Decoder[list[R]] = msgspec.json.Decoder(list[entry_type])  # type: ignore[valid-type] # At run time.
        self._noun = noun
        self.entries: list[R] = []
        self._is_saved = True
        """Whether the file has these entries."""
        self._is_failure_logged = False

    def load(self, now_ms: int) -> None:
        """Read the entries that have not expired from the file, if there is one. Raises `InvalidOverrideFile`."""
        if self._path is None or not self._path.exists():
            return
        try:
            entries = self._decoder.decode(self._path.read_bytes())
        except msgspec.DecodeError as problem:
            raise InvalidOverrideFile(
                f"{self._path} is not a valid {self._noun} file: {problem}. Fix it or move it away."
            ) from None
        self.entries = [entry for entry in entries if now_ms < entry.until_ms]

    def store(self, entries: Sequence[R]) -> None:
        """Replace all entries by these in the file, then in memory. Raises `OverridesNotSaved`; then nothing has changed."""
        try:
            self._save(entries)
        except OSError as error:
            raise OverridesNotSaved(f"the file {self._path} cannot be written: {error.strerror or error}") from error
        self.entries = list(entries)

    def adopt(self, entries: Iterable[R]) -> None:
        """Replace all entries by these in memory, and in the file if it does not have them yet.

        For changes that are in force anyway: those of the override store, and expired entries. If the file cannot be
        written, this is logged once, and the next call tries again.
        """
        adopted = list(entries)
        if adopted != self.entries:
            self.entries = adopted
            self._is_saved = False
        if self._is_saved:
            return
        try:
            self._save(self.entries)
        except OSError as error:
            if not self._is_failure_logged:
                log.warning("overrides not written to their file; trying again kind=%s error=%s", self._noun, error)
            self._is_failure_logged = True

    def replace(self, entries: list[R], *, is_shared: bool) -> None:
        """Replace all entries by these. Raises `OverridesNotSaved` if only the file would keep them (not `is_shared`)."""
        if is_shared:
            self.adopt(entries)
        else:
            self.store(entries)

    def drop_expired(self, now_ms: int) -> list[R]:
        """Delete expired entries, as `adopt` does, and return them."""
        ended = [entry for entry in self.entries if now_ms >= entry.until_ms]
        self.adopt(entry for entry in self.entries if entry not in ended)
        return ended

    def _save(self, entries: Sequence[R]) -> None:
        """Write entries to the file, which is replaced atomically: a crash leaves the old or the new one. Raises `OSError`."""
        if self._path is not None:
            replace_file(self._path, msgspec.json.encode(entries))
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
        self.grant_file: Final = OverrideFile(None if folder is None else folder / "grants.json", Grant, "grants")
        self._ban_file: Final = OverrideFile(
            None if folder is None else folder / "operator-bans.json", OperatorBan, "bans"
        )
        self.bans: Mapping[str, OperatorBan] = {}
        """The bans by operators in force, by subject. The store has those of apps, tokens and addresses too."""
        self.has_user_bans = False
        """Whether a whole user is banned: no store knows such bans."""
        self.off_until_ms = 0
        self.shared_overrides: OverrideStore | None = None
        """The override store; `None` if no other process shares the store."""
        self.on_revocation: Callable[[str, int], object] = lambda _subject, _at_ms: None
        """Called with the subject and the time of each revocation of another process."""
        self._shared_version = -1
        self._now_ms = clock
        self._apply = apply

    def open(self) -> None:
        """Load the grants and bans of the files and apply them."""
        self.grant_file.load(self._now_ms())
        self._apply(self.grant_file.entries)
        self._ban_file.load(self._now_ms())
        self._apply_bans()

    @property
    def is_off(self) -> bool:
        return bool(self.off_until_ms) and self._now_ms() < self.off_until_ms

    async def add_grants(self, grants: Iterable[Grant]) -> None:
        """Add grants in this process and in the override store, and apply them.

        Raises `StoreUnavailable`, and `OverridesNotSaved` if only the file would keep them and it cannot be written.
        """
        new = list(grants)
        if self.shared_overrides is not None:
            for grant in new:
                if grant not in self.grant_file.entries:
                    await self.shared_overrides.write_override(build_grant_name(grant), msgspec.json.encode(grant))
        known = self.grant_file.entries
        self._replace_grants([*known, *(grant for grant in new if grant not in known)])

    async def revoke_grants(self, owner: str, resource: str | None) -> list[Grant]:
        """Delete the grants of an owner in this process and in the override store, and return them.

        `resource` limits this to one bucket; `None` means all. Raises `StoreUnavailable` and `OverridesNotSaved`, as
        `add_grants` does.
        """
        ended = [g for g in self.grant_file.entries if g.owner == owner and resource in (None, g.resource)]
        if self.shared_overrides is not None:
            for grant in ended:
                await self.shared_overrides.write_override(build_grant_name(grant), None)
        self._replace_grants([grant for grant in self.grant_file.entries if grant not in ended])
        return ended

    def _replace_grants(self, grants: list[Grant]) -> None:
        """Replace all grants by these and apply them. Raises `OverridesNotSaved` if only the file would keep them."""
        self.grant_file.replace(grants, is_shared=self.shared_overrides is not None)
        self._apply(self.grant_file.entries)

    async def add_ban(self, ban: OperatorBan) -> None:
        """Add a ban, or replace that of the same subject, in this process and in the override store.

        Raises `TooManyBans`, `StoreUnavailable`, and `OverridesNotSaved` as `add_grants` does.
        """
        others = [known for known in self._ban_file.entries if known.subject != ban.subject]
        if len(others) >= MAX_BANS:
            raise TooManyBans(
                f"operators have banned {MAX_BANS:,} callers already: end a ban with `wharf limits unban`"
            )
        if self.shared_overrides is not None:
            await self.shared_overrides.write_override(build_ban_name(ban.subject), msgspec.json.encode(ban))
        self._ban_file.replace([*others, ban], is_shared=self.shared_overrides is not None)
        self._apply_bans()

    async def end_ban(self, subject: str) -> None:
        """End the ban of a subject in this process and in the override store. Raises as `add_ban` does."""
        if subject not in self.bans:
            return
        if self.shared_overrides is not None:
            await self.shared_overrides.write_override(build_ban_name(subject), None)
        others = [known for known in self._ban_file.entries if known.subject != subject]
        self._ban_file.replace(others, is_shared=self.shared_overrides is not None)
        self._apply_bans()

    def find_ban(self, subject: str | None, now_ms: int) -> OperatorBan | None:
        """Return the ban by an operator of this subject that is in force; `None` if there is none."""
        ban = None if subject is None else self.bans.get(subject)
        return ban if ban is not None and now_ms < ban.until_ms else None

    def _apply_bans(self) -> None:
        """Look up the bans of the file from now on."""
        self.bans = {ban.subject: ban for ban in self._ban_file.entries}
        self.has_user_bans = any(subject.startswith(USER_PREFIX) for subject in self.bans)

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
            for grant in self.grant_file.entries:
                await self.shared_overrides.write_override(build_grant_name(grant), msgspec.json.encode(grant))
            for ban in self._ban_file.entries:
                await self.shared_overrides.write_override(build_ban_name(ban.subject), msgspec.json.encode(ban))
            await self.shared_overrides.write_override(OFF_KEY, str(self.off_until_ms).encode())
            self._shared_version = 0
            return
        self._shared_version = version
        now_ms = self._now_ms()
        grants = [decode_grant(value) for name, value in entries.items() if name.startswith(GRANT_PREFIX)]
        self.grant_file.adopt(grant for grant in grants if now_ms < grant.until_ms)
        self._apply(self.grant_file.entries)
        bans = [_BAN_DECODER.decode(value) for name, value in entries.items() if name.startswith(BAN_PREFIX)]
        self._ban_file.adopt(ban for ban in bans if now_ms < ban.until_ms)
        self._apply_bans()
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
            self._apply(self.grant_file.entries)
        return ended

    async def remove_shared_grants(self, grants: Iterable[Grant]) -> None:
        """Delete expired grants from the override store. Failures are ignored: every process checks the expiry itself."""
        if self.shared_overrides is not None:
            with contextlib.suppress(StoreUnavailable):
                for grant in grants:
                    await self.shared_overrides.write_override(build_grant_name(grant), None)

    async def drop_expired_bans(self, now_ms: int) -> None:
        """Delete expired bans in this process and in the override store. A store that is away is ignored."""
        ended = self._ban_file.drop_expired(now_ms)
        if not ended:
            return
        self._apply_bans()
        if self.shared_overrides is not None:
            with contextlib.suppress(StoreUnavailable):
                for ban in ended:
                    await self.shared_overrides.write_override(build_ban_name(ban.subject), None)

    def end_expired_off(self, now_ms: int) -> bool:
        """Turn limits on again if the time for which they were off is over. Return whether this call turned them on."""
        if not self.off_until_ms or now_ms < self.off_until_ms:
            return False
        self.off_until_ms = 0
        return True
