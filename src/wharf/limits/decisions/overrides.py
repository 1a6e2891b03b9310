"""Grants that operators give, kept in a file over restarts. They end by themselves; whoever keeps them is told which did.

What operators ordered: grants, and limits that are off for a time; here, and wherever the store is shared.

An order that is heard by one process stands on the board of the store, where the others look. It decides nothing: the
limiter is given the grants that hold, and whoever decides asks whether limits are off.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from wharf.limits.core.limiter import Grant
from wharf.limits.stores.port import OverrideStore, StoreUnavailable

GRANTS_MOST: Final = 100_000
GRANT_PREFIX: Final = "grant "
_READ: Final = msgspec.json.Decoder(list[Grant])
_READ_ONE: Final = msgspec.json.Decoder(Grant)


class InvalidGrantsFile(Exception):
    """A file of grants that cannot be read. Its text says why, and what to do."""


def build_grant_name(grant: Grant) -> str:
    """Under which name it stands on a board: the same grant has the same one, whoever puts it there."""
    return f"{GRANT_PREFIX}{grant.owner} {grant.resource} {grant.amount} {grant.until_ms}"


def decode_grant(data: bytes) -> Grant:
    return _READ_ONE.decode(data)


class GrantFile:
    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.grants: list[Grant] = []

    def load(self, now_ms: int) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            found = _READ.decode(self._path.read_bytes())
        except msgspec.DecodeError as problem:
            raise InvalidGrantsFile(f"{self._path} holds no grants ({problem}): mend it, or move it away") from None
        self.grants = [grant for grant in found if now_ms < grant.until_ms]

    def add(self, grants: Iterable[Grant]) -> None:
        self.grants += grants
        self._save()

    def replace(self, grants: Iterable[Grant]) -> None:
        """Hold these and no others: they were given for all processes that share a store."""
        told = list(grants)
        if told != self.grants:
            self.grants = told
            self._save()

    def revoke(self, owner: str, resource: str | None) -> list[Grant]:
        """End the grants of an owner now. Returns which."""
        ended = [g for g in self.grants if g.owner == owner and resource in (None, g.resource)]
        self._keep_without(ended)
        return ended

    def drop_expired(self, now_ms: int) -> list[Grant]:
        """Forget the grants that are over. Returns which."""
        ended = [grant for grant in self.grants if now_ms >= grant.until_ms]
        self._keep_without(ended)
        return ended

    def _keep_without(self, ended: list[Grant]) -> None:
        if ended:
            self.grants = [grant for grant in self.grants if grant not in ended]
            self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        with new.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(msgspec.json.encode(self.grants))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)


OFF_KEY: Final = "off"


class OperatorOverrides:
    """`apply` is given the grants that hold, whenever they changed. `folder` None keeps them in memory only."""

    def __init__(
        self, folder: Path | None, clock: Callable[[], int], apply: Callable[[Iterable[Grant]], object]
    ) -> None:
        self.grant_file: Final = GrantFile(folder / "grants.json" if folder is not None else None)
        self.off_until_ms = 0
        self.shared_overrides: OverrideStore | None = None
        """Where orders are left for other processes; None where there are none."""
        self._board_version = -1
        self._now_ms = clock
        self._apply = apply

    def open(self) -> None:
        self.grant_file.load(self._now_ms())
        self._apply(self.grant_file.grants)

    @property
    def is_off(self) -> bool:
        return bool(self.off_until_ms) and self._now_ms() < self.off_until_ms

    async def add_grants(self, grants: Iterable[Grant]) -> None:
        """Grants hold from now on, here and wherever the store is shared. Raises StoreUnavailable."""
        new = [grant for grant in grants if grant not in self.grant_file.grants]
        if self.shared_overrides is not None:
            for grant in new:
                await self.shared_overrides.write_override(build_grant_name(grant), msgspec.json.encode(grant))
        self.grant_file.add(new)
        self._apply(self.grant_file.grants)

    async def revoke_grants(self, owner: str, resource: str | None) -> list[Grant]:
        """End the grants of an owner everywhere. Returns which. Raises StoreUnavailable."""
        if self.shared_overrides is not None:
            for grant in self.grant_file.grants:
                if grant.owner == owner and resource in (None, grant.resource):
                    await self.shared_overrides.write_override(build_grant_name(grant), None)
        ended = self.grant_file.revoke(owner, resource)
        self._apply(self.grant_file.grants)
        return ended

    async def set_off_until(self, until_ms: int) -> None:
        """All limits are off until then, wherever the store is shared; 0 is on again. Raises StoreLost."""
        if self.shared_overrides is not None:
            await self.shared_overrides.write_override(OFF_KEY, str(until_ms).encode())
        self.off_until_ms = until_ms

    async def sync_shared(self) -> None:
        """Take what operators said to other processes. Raises StoreUnavailable."""
        if self.shared_overrides is None:
            return
        told = await self.shared_overrides.read_overrides(self._board_version)
        if told is None:
            return
        version, entries = told
        if version < max(1, self._board_version):
            # Nobody wrote there yet, or it was lost with the store: what is known here is what holds.
            for grant in self.grant_file.grants:
                await self.shared_overrides.write_override(build_grant_name(grant), msgspec.json.encode(grant))
            await self.shared_overrides.write_override(OFF_KEY, str(self.off_until_ms).encode())
            self._board_version = 0
            return
        self._board_version = version
        now_ms = self._now_ms()
        found = [decode_grant(value) for name, value in entries.items() if name.startswith(GRANT_PREFIX)]
        self.grant_file.replace(grant for grant in found if now_ms < grant.until_ms)
        self._apply(self.grant_file.grants)
        off_until_ms = int(entries.get(OFF_KEY, b"0"))
        self.off_until_ms = off_until_ms if now_ms < off_until_ms else 0

    def drop_expired_grants(self, now_ms: int) -> list[Grant]:
        """Forget the grants that are over. Returns which; `take_down` tells the others."""
        ended = self.grant_file.drop_expired(now_ms)
        if ended:
            self._apply(self.grant_file.grants)
        return ended

    async def remove_shared_grants(self, grants: Iterable[Grant]) -> None:
        """They ended by themselves; where they stand for longer, everybody knows that they are over."""
        if self.shared_overrides is not None:
            with contextlib.suppress(StoreUnavailable):
                for grant in grants:
                    await self.shared_overrides.write_override(build_grant_name(grant), None)

    def end_expired_off(self, now_ms: int) -> bool:
        """Whether limits were off, and are on again as the time is over."""
        if not self.off_until_ms or now_ms < self.off_until_ms:
            return False
        self.off_until_ms = 0
        return True
