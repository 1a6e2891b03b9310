"""A duty of the leader: rotates and collects keyring keys, re-encrypts secrets, deletes expired tokens and
idempotency keys.

`operations` decides what is due; this module encrypts and commits.
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
from wharf.contract.model.times import HOUR, DecisionContext
from wharf.world.tasks import wait_for_event

log = logging.getLogger(__name__)

MAX_SEALED_PER_WRITE: Final = 32
"""Re-encrypted secrets per write: fits the smallest write limit of an engine and takes a few milliseconds."""


class SecretsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When keys, secrets, tokens and idempotency keys are checked, and how long unused ones are retained."""

    should_create_first_key: bool = False
    """Whether to create the first key at once, so that other servers see at start which file wraps it."""
    check_interval_s: float = 300.0
    max_active_key_age_ns: int = 720 * HOUR
    unused_key_retention_ns: int = HOUR
    expired_token_retention_ns: int = HOUR


class SecretsDuty:
    """Maintains keyring keys, encrypted records, tokens and idempotency keys."""

    def __init__(self, brain: Brain, keyring: Keyring, settings: SecretsSettings) -> None:
        self._brain = brain
        self._keyring = keyring
        self._settings = settings
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Run a pass over keys, secrets and tokens at intervals, and at once when the keyring changes, while the brain
        leads.
        """
        replica = self._brain.replica
        changed = asyncio.Event()
        watched: list[WatchTarget] = [watch_table(KEYRING)]
        subscription = replica.watches.subscribe(watched, changed.set)
        self._keyring.change_listeners.append(changed.set)
        try:
            while self._brain.is_leading:
                changed.clear()
                subscription.rearm()
                await self._run_pass()
                await wait_for_event(changed, self._settings.check_interval_s)
        finally:
            self._keyring.change_listeners.remove(changed.set)
            subscription.close()

    async def _run_pass(self) -> None:
        """Rotate and rewrap keys, re-encrypt records, and delete expired tokens, idempotency keys and unused keys.

        Only what is due is changed, one write at a time.
        """
        settings = self._settings
        await self._rotate_key_if_due()
        await self._rewrap_keys()
        await self._reencrypt_records()
        limit = self._brain.max_changes
        # Each of these steps may read a whole table.
        while await self._brain.execute_if_due(
            lambda snapshot, context: tokens.collect_expired_tokens(
                snapshot, context, threshold_ns=settings.expired_token_retention_ns, max_tokens=limit
            ),
            is_long=True,
        ):
            pass
        while await self._brain.execute_if_due(
            lambda snapshot, context: idempotency.collect_expired_keys(snapshot, context, max_keys=limit), is_long=True
        ):
            pass
        await self._brain.execute_if_due(
            lambda snapshot, context: keyring.collect_unused_keys(
                snapshot, context, threshold_ns=settings.unused_key_retention_ns
            ),
            is_long=True,
        )

    async def _rotate_key_if_due(self) -> None:
        """Activate a key whose publish time has passed, create the first key if configured, and replace a key that is
        too old.
        """
        await self._brain.execute(
            lambda snapshot, context: _report_if_due(keyring.activate_prepublished_key(snapshot, context))
        )
        if self._settings.should_create_first_key and self._keyring.find_active_key(self._brain.replica) is None:
            request = KeyRotationRequest(await self._keyring.make_key(), only_first=True)
            await self._brain.execute(lambda snapshot, _context: keyring.rotate_key(snapshot, request))
        threshold_ns = self._settings.max_active_key_age_ns
        context = DecisionContext(self._brain.world.now_ns(), self._brain.world.new_id)
        if keyring.is_rotation_due(self._brain.replica, context, threshold_ns=threshold_ns):
            request = KeyRotationRequest(await self._keyring.make_key())
            await self._brain.execute(lambda snapshot, _context: keyring.rotate_key(snapshot, request))

    async def _rewrap_keys(self) -> None:
        """Encrypt keys of the keyring again if they are wrapped by another wrapping key than the current one."""
        own_keyring = self._keyring
        if not own_keyring.list_foreign_keys(self._brain.replica):
            return
        limit = self._brain.max_changes
        while await self._brain.execute(
            lambda snapshot, _context: _report_if_due(
                keyring.rewrap_keys(
                    snapshot, [own_keyring.rewrap_key(key) for key in own_keyring.list_foreign_keys(snapshot)[:limit]]
                )
            )
        ):
            log.info("rewrapped keyring keys")

    async def _reencrypt_records(self) -> None:
        """Re-encrypt all outdated records with the active key, some per write.

        The replica shows which records are left, so a new leader can continue.
        """
        limit = max(1, min(MAX_SEALED_PER_WRITE, self._brain.max_changes // 2))
        while self._brain.is_leading and keyring.list_records_to_reencrypt(self._brain.replica, max_records=1):
            await self._brain.execute(
                lambda snapshot, _context: keyring.reencrypt_records(snapshot, self._reencrypt(snapshot, limit))
            )
        await self._brain.execute(lambda snapshot, _context: _report_if_due(keyring.finish_reencryption(snapshot)))

    def _reencrypt(self, snapshot: Replica, limit: int) -> list[tuple[ReencryptionItem, SealedData]]:
        """Return up to `limit` outdated records, each with its secret encrypted with the active key.

        Nothing is written.
        """
        own_keyring = self._keyring
        return [
            (
                item,
                own_keyring.seal(
                    snapshot, own_keyring.open(snapshot, item.sealed_data, context=item.context), context=item.context
                ),
            )
            for item in keyring.list_records_to_reencrypt(snapshot, max_records=limit)
        ]


def _report_if_due(decision: Decision[Any] | None) -> Decision[bool]:
    """Return the decision with a boolean reply: whether there was something to do."""
    if decision is None:
        return Decision(None, lambda _index: False)
    return Decision(decision.write, lambda _index: True)
