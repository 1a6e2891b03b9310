"""What time does to secrets: keys are rotated and collected, sealed texts sealed anew, expired tokens and keys of writes removed.

One of the leader's duties. What is due is told by the state (`operations`); here it is looked for, sealed and written.
"""

import asyncio
import logging
from typing import Any, Final

import msgspec

from wharf.model.moment import Moment
from wharf.model.secret import Sealed
from wharf.operations import idempotency, keyring, tokens
from wharf.operations.decision import Decision
from wharf.operations.keyring import RotationRequest, ToSeal
from wharf.server.brain import Brain
from wharf.server.keyring import Keyring
from wharf.state import Replica, Watched
from wharf.state.tables import KEYRING
from wharf.state.watches import whole

log = logging.getLogger(__name__)

HOUR_NS: Final = 3_600_000_000_000
SEALED_AT_ONCE: Final = 32
"""Sealed texts of one step: as many as an engine with small writes takes, and a few milliseconds of work."""


class TendingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The reference's defaults (conventions 4.3, 5.3)."""

    begins_ring: bool = False
    """Whether the first key is made before it is needed: so other servers see at their start which file wraps it."""
    look_every_s: float = 300.0
    rotation_threshold_ns: int = 720 * HOUR_NS
    key_threshold_ns: int = HOUR_NS
    token_threshold_ns: int = HOUR_NS


class Tending:
    def __init__(self, brain: Brain, ring: Keyring, settings: TendingSettings | None = None) -> None:
        self._brain = brain
        self._ring = ring
        self._settings = settings or TendingSettings()
        brain.duties.append(self.tend)

    async def tend(self) -> None:
        """Look now and then, and at once when the ring changes."""
        replica = self._brain.follower.replica
        changed = asyncio.Event()
        watched: list[Watched] = [whole(KEYRING)]
        subscription = replica.watches.subscribe(watched, changed.set)
        self._ring.on_use.append(changed.set)
        try:
            while self._brain.is_leading:
                changed.clear()
                subscription.rearm()
                await self._look()
                try:
                    async with asyncio.timeout(self._settings.look_every_s):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._ring.on_use.remove(changed.set)
            subscription.end()

    async def _look(self) -> None:
        """All that is due, one write after the other."""
        settings = self._settings
        await self._rotate_where_due()
        await self._wrap_anew()
        await self._seal_anew()
        most = self._brain.changes_max
        while await self._brain.decide(
            lambda snapshot, moment: _or_nothing(
                tokens.collect_expired(snapshot, moment, threshold_ns=settings.token_threshold_ns, most=most)
            )
        ):
            pass
        while await self._brain.decide(
            lambda snapshot, moment: _or_nothing(idempotency.collect_expired(snapshot, moment, most=most))
        ):
            pass
        await self._brain.decide(
            lambda snapshot, moment: _or_nothing(
                keyring.collect_keys(snapshot, moment, threshold_ns=settings.key_threshold_ns)
            )
        )

    async def _rotate_where_due(self) -> None:
        await self._brain.decide(lambda snapshot, moment: _or_nothing(keyring.publish_due(snapshot, moment)))
        if self._settings.begins_ring and self._ring.active_key(self._brain.follower.replica) is None:
            first = RotationRequest(await self._ring.make_key(), only_first=True)
            await self._brain.decide(lambda snapshot, _moment: keyring.rotate(snapshot, first))
        threshold_ns = self._settings.rotation_threshold_ns
        moment = Moment(self._brain.world.now_ns(), self._brain.world.new_id)
        if keyring.is_rotation_due(self._brain.follower.replica, moment, threshold_ns=threshold_ns):
            asked = RotationRequest(await self._ring.make_key())
            await self._brain.decide(lambda snapshot, _moment: keyring.rotate(snapshot, asked))

    async def _wrap_anew(self) -> None:
        """The wrapping key was changed: what another one wraps is wrapped by that of today."""
        ring = self._ring
        if not ring.wrapped_by_others(self._brain.follower.replica):
            return
        most = self._brain.changes_max
        while await self._brain.decide(
            lambda snapshot, _moment: _or_nothing(
                keyring.wrap_anew(snapshot, [ring.wrap_anew(key) for key in ring.wrapped_by_others(snapshot)[:most]])
            )
        ):
            log.info("keys of the keyring were wrapped by the new wrapping key")

    async def _seal_anew(self) -> None:
        """Step after step; where the next one begins is told by the state, so that any leader can go on."""
        most = max(1, min(SEALED_AT_ONCE, self._brain.changes_max // 2))
        while self._brain.is_leading and keyring.next_to_seal(self._brain.follower.replica, most=1):
            await self._brain.decide(
                lambda snapshot, _moment: keyring.seal_anew(snapshot, self._sealed_again(snapshot, most))
            )
        await self._brain.decide(lambda snapshot, _moment: _or_nothing(keyring.finish_sealing(snapshot)))

    def _sealed_again(self, snapshot: Replica, most: int) -> list[tuple[ToSeal, Sealed]]:
        ring = self._ring
        return [
            (item, ring.seal(snapshot, ring.open(snapshot, item.sealed, about=item.about), about=item.about))
            for item in keyring.next_to_seal(snapshot, most=most)
        ]


def _or_nothing(decision: Decision[Any] | None) -> Decision[bool]:
    """Whether something was due, as a decision."""
    if decision is None:
        return Decision(None, lambda _index: False)
    return Decision(decision.write, lambda _index: True)
