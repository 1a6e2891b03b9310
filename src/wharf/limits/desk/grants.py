"""Grants that operators give, kept in a file over restarts. They end by themselves; whoever keeps them is told which did."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from wharf.limits.core.limiter import Grant

GRANTS_MOST: Final = 100_000
ON_BOARD: Final = "grant "
_READ: Final = msgspec.json.Decoder(list[Grant])
_READ_ONE: Final = msgspec.json.Decoder(Grant)


class GrantsRefused(Exception):
    """A file of grants that cannot be read. Its text says why, and what to do."""


def name_of(grant: Grant) -> str:
    """Under which name it stands on a board: the same grant has the same one, whoever puts it there."""
    return f"{ON_BOARD}{grant.owner} {grant.resource} {grant.amount} {grant.until_ms}"


def read_grant(told: bytes) -> Grant:
    return _READ_ONE.decode(told)


class GrantBook:
    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.grants: list[Grant] = []

    def load(self, now_ms: int) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            found = _READ.decode(self._path.read_bytes())
        except msgspec.DecodeError as problem:
            raise GrantsRefused(f"{self._path} holds no grants ({problem}): mend it, or move it away") from None
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

    def end_those_over(self, now_ms: int) -> list[Grant]:
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
