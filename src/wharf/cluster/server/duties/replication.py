"""Copies what is global from the authoritative region: one of the leader's duties in every other region.

Each table is waited on by itself, and compared whole whenever it changed there; only what differs is fetched. What that
means for the records here is told by `operations.replication`. Secrets come over the way between regions and are sealed
by our own ring before they are written. Local tokens are never touched.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from wharf.cluster.operations import keyring, replication
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.keyring import KeyRotationRequest, make_auth_method_context, make_token_context
from wharf.cluster.operations.replication import REPLICATED_TABLES, ReplicatedTable
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.security.keyring import Keyring
from wharf.cluster.server.security.sealed_messages import MessageRecipient, SealedMessage
from wharf.cluster.state import Replica, Table
from wharf.cluster.state.tables import (
    ACL_AUTH_METHODS,
    ACL_BINDING_RULES,
    ACL_POLICIES,
    ACL_ROLES,
    ACL_TOKENS,
    NAMESPACES,
    NODE_POOLS,
    QUOTAS,
)
from wharf.contract.client.async_client import AsyncClient
from wharf.contract.client.calls import Response
from wharf.contract.client.errors import NotFound
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.acl.auth_methods import REDACTED_TEXT, AuthMethod, AuthMethodConfig
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.tokens import RoleLink, Token, TokenType
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.secrets import SealedData, hash_secret
from wharf.contract.wire import acl as shapes
from wharf.contract.wire import times
from wharf.contract.wire.times import parse_duration_ns

log = logging.getLogger(__name__)

BLOCKING_QUERY_WAIT_S: Final = 300.0
"""How long a question waits for a change. At its end all is compared again, changed or not."""

MAX_FETCHED_PER_WRITE: Final = 50
"""What was fetched is written before more is: after an interruption it need not be fetched again."""

MIN_RETRY_DELAY_S: Final = 1.0
MAX_RETRY_DELAY_S: Final = 60.0

ReplicatedRecord = Any
"""A record of one of the copied tables."""


class ReplicationSource(NamedTuple):
    """How a table is asked for. `fetch`: a record of the list, whole; None where it cannot be copied or went meanwhile."""

    list_: Callable[..., Awaitable[Response[list[Any]]]]
    fetch: Callable[[Any], Awaitable[ReplicatedRecord | None]]
    should_replicate: Callable[[Any], bool] = lambda _stub: True


class ReplicationDuty:
    """`authoritative`: a client of all servers of that region, with a management token of it."""

    def __init__(self, brain: Brain, keyring: Keyring, client: AsyncClient, *, region: str) -> None:
        self._brain = brain
        self._ring = keyring
        self._client = client
        self._region = region
        self._away: dict[str, None] = {}
        """Tables whose last question failed. The first of them is told of, and when the last is back."""
        brain.duties.append(self.run)

    async def run(self) -> None:
        """As long as the brain leads."""
        sources = self._sources()
        works = [
            self._brain.world.start_task(
                self._follow(copied, sources[copied.table.name]), name=f"copy {copied.table.name}"
            )
            for copied in REPLICATED_TABLES
        ]
        try:
            await asyncio.gather(*works)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _follow(self, copied: ReplicatedTable, source: ReplicationSource) -> None:
        index, again_s = 0, MIN_RETRY_DELAY_S
        while self._brain.is_leading:
            try:
                answer = await (source.list_(index=index, wait_s=BLOCKING_QUERY_WAIT_S) if index else source.list_())
                await self._take(copied, source, answer.value)
            except (Refusal, Unreachable) as error:
                self._tell_away(copied, error)
                # What came was not written whole: it is asked for anew, without waiting for another change.
                index = 0
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, MAX_RETRY_DELAY_S)
                continue
            self._tell_back(copied)
            # An index that went back is that of a log which was replaced.
            index, again_s = (answer.index if answer.index >= index else 0), MIN_RETRY_DELAY_S

    # -- comparing -------------------------------------------------------------------------------------------------

    async def _take(self, copied: ReplicatedTable, source: ReplicationSource, stubs: Iterable[Any]) -> None:
        """Make the table as it is there, some records at a time."""
        await self._check_rights()
        table, replica = copied.table, self._brain.follower.replica
        given = {table.get_key(stub): stub for stub in stubs if source.should_replicate(stub)}
        stored = {key: replica.get_table_records(table).records.get(key) for key in given}
        known = {key: record for key, record in stored.items() if record is not None}
        differing = iter([key for key, record in stored.items() if record is None or record.hash != given[key].hash])
        while True:
            keys = list(islice(differing, MAX_FETCHED_PER_WRITE))
            for key in keys:
                record = await source.fetch(given[key])
                if record is not None:
                    known[key] = record
            await self._write(copied, list(known.values()))
            if not keys:
                return

    async def _check_rights(self) -> None:
        """A token with fewer rights would be shown less, and what it is not shown must not be taken for deleted."""
        own = (await self._client.acl.tokens.read_own()).value
        if own.type != TokenType.MANAGEMENT:
            raise Refusal(
                RefusalCode.FORBIDDEN,
                "acl.replication_token is no management token there, or access control is off there",
            )

    async def _write(self, copied: ReplicatedTable, records: list[ReplicatedRecord]) -> None:
        most = self._brain.max_changes

        def next_step(snapshot: Replica, _moment: object) -> Decision[bool]:
            steps = replication.build_replication_writes(
                snapshot, copied, records, region=self._region, max_changes=most
            )
            step = next(steps, None)
            return Decision(step, lambda _index: step is not None)

        while await self._brain.execute(next_step):
            pass

    # -- what is said of it ------------------------------------------------------------------------------------------

    def _tell_away(self, copied: ReplicatedTable, error: Exception) -> None:
        if not self._away:
            log.warning(
                "nothing can be copied from the authoritative region %s: %s; trying again until it can",
                self._region,
                error,
            )
        self._away[copied.table.name] = None

    def _tell_back(self, copied: ReplicatedTable) -> None:
        if self._away.pop(copied.table.name, self) is None and not self._away:
            log.info("what is global is copied from region %s again", self._region)

    # -- the tables --------------------------------------------------------------------------------------------------

    def _sources(self) -> dict[str, ReplicationSource]:
        client, acl = self._client, self._client.acl
        by_table: dict[Table[Any], ReplicationSource] = {
            QUOTAS: ReplicationSource(client.quotas.list, _as_it_is),
            NAMESPACES: ReplicationSource(client.namespaces.list, _as_it_is),
            NODE_POOLS: ReplicationSource(client.node_pools.list, _as_it_is),
            ACL_POLICIES: ReplicationSource(acl.policies.list, self._policy),
            ACL_ROLES: ReplicationSource(acl.roles.list, _as_it_is),
            ACL_AUTH_METHODS: ReplicationSource(acl.auth_methods.list, self._method),
            ACL_BINDING_RULES: ReplicationSource(acl.binding_rules.list, _as_it_is),
            ACL_TOKENS: ReplicationSource(acl.tokens.list, self._token, lambda stub: stub.global_),
        }
        return {table.name: source for table, source in by_table.items()}

    async def _policy(self, stub: shapes.PolicyStub) -> Policy | None:
        try:
            shown = (await self._client.acl.policies.read(stub.name)).value
        except NotFound:
            return None
        return Policy(
            name=shown.name,
            description=shown.description,
            rules=shown.rules,
            job_acl=shown.job_acl,
            hash=shown.hash,
        )

    async def _token(self, stub: shapes.TokenStub) -> Token | None:
        try:
            shown = (await self._client.acl.tokens.read(stub.accessor_id)).value
        except NotFound:
            return None
        await self._begin_ring()
        replica = self._brain.follower.replica
        sealed = self._ring.seal(replica, shown.secret_id.encode(), context=make_token_context(shown.accessor_id))
        return Token(
            accessor_id=shown.accessor_id,
            secret_digest=hash_secret(shown.secret_id),
            secret_sealed=sealed.data,
            sealed_with=sealed.key_id,
            name=shown.name,
            type=shown.type,
            policies=shown.policies,
            roles=None if shown.roles is None else tuple(RoleLink(id=link.id) for link in shown.roles),
            global_=True,
            hash=shown.hash,
            create_time=shown.create_time,
            expiration_time=shown.expiration_time,
            expiration_ttl=_ns(shown.expiration_ttl),
        )

    async def _method(self, stub: shapes.AuthMethodStub) -> AuthMethod | None:
        try:
            shown = (await self._client.acl.auth_methods.read(stub.name)).value
        except NotFound:
            return None
        fields = {name: getattr(shown, name) for name in AuthMethod.__struct_fields__ if hasattr(shown, name)}
        fields |= {"max_token_ttl": _ns(shown.max_token_ttl), "config": _config_of(shown.config)}
        if REDACTED_TEXT.encode() in msgspec.json.encode(shown.config):
            sealed = await self._secrets_of(stub.name)
            if sealed is None:
                return None
            fields |= {"secrets_sealed": sealed.data, "sealed_with": sealed.key_id}
        return AuthMethod(**fields)

    async def _secrets_of(self, name: str) -> SealedData | None:
        """What no reply shows comes sealed for us alone, and is sealed by our own ring at once. None: it went meanwhile."""
        box = MessageRecipient(self._brain.world)
        try:
            told = await self._client.acl.auth_methods.read_sealed_secrets(name, box.public_key)
        except NotFound:
            return None
        plain = box.open(SealedMessage(told.sender, told.sealed), context=make_auth_method_context(name))
        await self._begin_ring()
        return self._ring.seal(self._brain.follower.replica, plain, context=make_auth_method_context(name))

    async def _begin_ring(self) -> None:
        if self._ring.find_active_key(self._brain.follower.replica) is None:
            first = KeyRotationRequest(await self._ring.make_key(), only_first=True)
            await self._brain.execute(lambda snapshot, _moment: keyring.rotate_key(snapshot, first))


async def _as_it_is(record: ReplicatedRecord) -> ReplicatedRecord:
    return record


def _config_of(shown: shapes.AuthMethodConfigView | None) -> AuthMethodConfig | None:
    if shown is None:
        return None
    fields = {name: getattr(shown, name) for name in AuthMethodConfig.__struct_fields__}
    leeways = ("expiration_leeway", "not_before_leeway", "clock_skew_leeway")
    return AuthMethodConfig(**fields | {name: _ns(fields[name]) for name in leeways})


def _ns(shown: times.DurationText) -> int:
    return shown if isinstance(shown, int) else parse_duration_ns(shown) if shown else 0
