"""What operators ordered: grants, and limits that are off for a time; here, and wherever the store is shared.

An order that is heard by one process stands on the board of the store, where the others look. It decides nothing: the
limiter is given the grants that hold, and whoever decides asks whether limits are off.
"""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from wharf.limits.core.limiter import Grant
from wharf.limits.desk.grants import ON_BOARD, GrantBook, name_of, read_grant
from wharf.limits.stores.port import Board, StoreLost

OFF: Final = "off"


class Orders:
    """`apply` is given the grants that hold, whenever they changed. `folder` None keeps them in memory only."""

    def __init__(
        self, folder: Path | None, clock: Callable[[], int], apply: Callable[[Iterable[Grant]], object]
    ) -> None:
        self.grants: Final = GrantBook(folder / "grants.json" if folder is not None else None)
        self.off_until_ms = 0
        self.board: Board | None = None
        """Where orders are left for other processes; None where there are none."""
        self._board_version = -1
        self._now_ms = clock
        self._apply = apply

    def open(self) -> None:
        self.grants.load(self._now_ms())
        self._apply(self.grants.grants)

    @property
    def is_off(self) -> bool:
        return bool(self.off_until_ms) and self._now_ms() < self.off_until_ms

    async def give(self, grants: Iterable[Grant]) -> None:
        """Grants hold from now on, here and wherever the store is shared. Raises StoreLost."""
        new = [grant for grant in grants if grant not in self.grants.grants]
        if self.board is not None:
            for grant in new:
                await self.board.write_board(name_of(grant), msgspec.json.encode(grant))
        self.grants.add(new)
        self._apply(self.grants.grants)

    async def revoke(self, owner: str, resource: str | None) -> list[Grant]:
        """End the grants of an owner everywhere. Returns which. Raises StoreLost."""
        if self.board is not None:
            for grant in self.grants.grants:
                if grant.owner == owner and resource in (None, grant.resource):
                    await self.board.write_board(name_of(grant), None)
        ended = self.grants.revoke(owner, resource)
        self._apply(self.grants.grants)
        return ended

    async def switch_off(self, until_ms: int) -> None:
        """All limits are off until then, wherever the store is shared; 0 is on again. Raises StoreLost."""
        if self.board is not None:
            await self.board.write_board(OFF, str(until_ms).encode())
        self.off_until_ms = until_ms

    async def follow_board(self) -> None:
        """Take what operators said to other processes. Raises StoreLost."""
        if self.board is None:
            return
        told = await self.board.read_board(self._board_version)
        if told is None:
            return
        version, entries = told
        if version < max(1, self._board_version):
            # Nobody wrote there yet, or it was lost with the store: what is known here is what holds.
            for grant in self.grants.grants:
                await self.board.write_board(name_of(grant), msgspec.json.encode(grant))
            await self.board.write_board(OFF, str(self.off_until_ms).encode())
            self._board_version = 0
            return
        self._board_version = version
        now_ms = self._now_ms()
        found = [read_grant(value) for name, value in entries.items() if name.startswith(ON_BOARD)]
        self.grants.replace(grant for grant in found if now_ms < grant.until_ms)
        self._apply(self.grants.grants)
        off_until_ms = int(entries.get(OFF, b"0"))
        self.off_until_ms = off_until_ms if now_ms < off_until_ms else 0

    def end_grants(self, now_ms: int) -> list[Grant]:
        """Forget the grants that are over. Returns which; `take_down` tells the others."""
        ended = self.grants.end_those_over(now_ms)
        if ended:
            self._apply(self.grants.grants)
        return ended

    async def take_down(self, grants: Iterable[Grant]) -> None:
        """They ended by themselves; where they stand for longer, everybody knows that they are over."""
        if self.board is not None:
            with contextlib.suppress(StoreLost):
                for grant in grants:
                    await self.board.write_board(name_of(grant), None)

    def end_off(self, now_ms: int) -> bool:
        """Whether limits were off, and are on again as the time is over."""
        if not self.off_until_ms or now_ms < self.off_until_ms:
            return False
        self.off_until_ms = 0
        return True
