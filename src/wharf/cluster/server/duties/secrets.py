"""What time does to secrets: keys are rotated and collected, sealed texts sealed anew, expired tokens and keys of writes removed.

One of the leader's duties. What is due is told by the state (`operations`); here it is looked for, sealed and written.
"""

import asyncio
import logging
from typing import Any, Final

import msgspec

from wharf.cluster.operations import idempotency, keyring
from wharf.cluster.operations.acl import tokens
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.keyring import KeyRotationRequest, ReencryptionItem
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.security.keyring import Keyring
from wharf.cluster.state import Replica, WatchTarget
from wharf.cluster.state.tables import KEYRING
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import DecisionContext

log = logging.getLogger(__name__)

HOUR_NS: Final = 3_600_000_000_000
MAX_SEALED_PER_WRITE: Final = 32
"""Sealed texts of one step: as many as an engine with small writes takes, and a few milliseconds of work."""


class SecretsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The reference's defaults (conventions 4.3, 5.3)."""

    should_create_first_key: bool = False
    """Whether the first key is made before it is needed: so other servers see at their start which file wraps it."""
    check_interval_s: float = 300.0
    max_active_key_age_ns: int = 720 * HOUR_NS
    unused_key_retention_ns: int = HOUR_NS
    expired_token_retention_ns: int = HOUR_NS


class SecretsDuty:
    def __init__(self, brain: Brain, keyring: Keyring, settings: SecretsSettings | None = None) -> None:
        self._brain = brain
        self._ring = keyring
        self._settings = settings or SecretsSettings()
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Look now and then, and at once when the ring changes."""
        replica = self._brain.follower.replica
        changed = asyncio.Event()
        watched: list[WatchTarget] = [watch_table(KEYRING)]
        subscription = replica.watches.subscribe(watched, changed.set)
        self._ring.change_listeners.append(changed.set)
        try:
            while self._brain.is_leading:
                changed.clear()
                subscription.rearm()
                await self._look()
                try:
                    async with asyncio.timeout(self._settings.check_interval_s):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._ring.change_listeners.remove(changed.set)
            subscription.close()

    async def _look(self) -> None:
        """All that is due, one write after the other."""
        settings = self._settings
        await self._rotate_where_due()
        await self._wrap_anew()
        await self._seal_anew()
        most = self._brain.max_changes
        while await self._brain.execute(
            lambda snapshot, moment: _or_nothing(
                tokens.collect_expired_tokens(
                    snapshot, moment, threshold_ns=settings.expired_token_retention_ns, max_tokens=most
                )
            )
        ):
            pass
        while await self._brain.execute(
            lambda snapshot, moment: _or_nothing(idempotency.collect_expired_keys(snapshot, moment, max_keys=most))
        ):
            pass
        await self._brain.execute(
            lambda snapshot, moment: _or_nothing(
                keyring.collect_unused_keys(snapshot, moment, threshold_ns=settings.unused_key_retention_ns)
            )
        )

    async def _rotate_where_due(self) -> None:
        await self._brain.execute(
            lambda snapshot, moment: _or_nothing(keyring.activate_prepublished_key(snapshot, moment))
        )
        if self._settings.should_create_first_key and self._ring.find_active_key(self._brain.follower.replica) is None:
            first = KeyRotationRequest(await self._ring.make_key(), only_first=True)
            await self._brain.execute(lambda snapshot, _moment: keyring.rotate_key(snapshot, first))
        threshold_ns = self._settings.max_active_key_age_ns
        moment = DecisionContext(self._brain.world.now_ns(), self._brain.world.new_id)
        if keyring.is_rotation_due(self._brain.follower.replica, moment, threshold_ns=threshold_ns):
            asked = KeyRotationRequest(await self._ring.make_key())
            await self._brain.execute(lambda snapshot, _moment: keyring.rotate_key(snapshot, asked))

    async def _wrap_anew(self) -> None:
        """The wrapping key was changed: what another one wraps is wrapped by that of today."""
        ring = self._ring
        if not ring.list_foreign_keys(self._brain.follower.replica):
            return
        most = self._brain.max_changes
        while await self._brain.execute(
            lambda snapshot, _moment: _or_nothing(
                keyring.rewrap_keys(snapshot, [ring.rewrap_key(key) for key in ring.list_foreign_keys(snapshot)[:most]])
            )
        ):
            log.info("keys of the keyring were wrapped by the new wrapping key")

    async def _seal_anew(self) -> None:
        """Step after step; where the next one begins is told by the state, so that any leader can go on."""
        most = max(1, min(MAX_SEALED_PER_WRITE, self._brain.max_changes // 2))
        while self._brain.is_leading and keyring.list_records_to_reencrypt(self._brain.follower.replica, max_records=1):
            await self._brain.execute(
                lambda snapshot, _moment: keyring.reencrypt_records(snapshot, self._sealed_again(snapshot, most))
            )
        await self._brain.execute(lambda snapshot, _moment: _or_nothing(keyring.finish_reencryption(snapshot)))

    def _sealed_again(self, snapshot: Replica, most: int) -> list[tuple[ReencryptionItem, SealedData]]:
        ring = self._ring
        return [
            (
                item,
                ring.seal(snapshot, ring.open(snapshot, item.sealed_data, context=item.context), context=item.context),
            )
            for item in keyring.list_records_to_reencrypt(snapshot, max_records=most)
        ]


def _or_nothing(decision: Decision[Any] | None) -> Decision[bool]:
    """Whether something was due, as a decision."""
    if decision is None:
        return Decision(None, lambda _index: False)
    return Decision(decision.write, lambda _index: True)
