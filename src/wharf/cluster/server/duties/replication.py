"""A duty of the leader in every region but the authoritative one: replicates global records from that region.

Each table has its own blocking query. When it returns, the whole list is compared and only records that differ are
fetched. `operations.replication` decides what to write. Secrets arrive encrypted for this server and are encrypted with
this region's keyring before they are written. Local tokens are never changed.
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
from wharf.contract.client.errors import NotFound, get_requested_delay_s
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.acl.auth_methods import REDACTED_TEXT, AuthMethod, AuthMethodConfig
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.tokens import RoleLink, Token, TokenType
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.secrets import SealedData, hash_secret
from wharf.contract.wire import acl as acl_wire
from wharf.contract.wire import times
from wharf.contract.wire.times import parse_duration_ns
from wharf.world.backoff import Backoff
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

BLOCKING_QUERY_WAIT_S: Final = 300.0
"""How long a query waits for a change. Then the whole table is compared again, changed or not."""

MAX_FETCHED_PER_WRITE: Final = 50
"""Fetched records are written after this many, so that an interruption loses little."""

MIN_RETRY_DELAY_S: Final = 1.0
MAX_RETRY_DELAY_S: Final = 60.0

ReplicatedRecord = Any
"""A record of one of the replicated tables."""


class ReplicationSource(NamedTuple):
    """How a table is read from the authoritative region."""

    list_stubs: Callable[..., Awaitable[Response[list[Any]]]]
    """Lists the table. An item has at least the key and the hash of its record."""
    fetch: Callable[[Any], Awaitable[ReplicatedRecord | None]]
    """Returns the whole record of an item, or `None` if it was deleted meanwhile."""
    should_replicate: Callable[[Any], bool] = lambda _stub: True
    """Whether the record of an item is replicated."""


class ReplicationDuty:
    """Copies all global records from the authoritative region while the brain leads.

    `client`: a client of all servers of that region, with a management token of that region.
    """

    def __init__(self, brain: Brain, keyring: Keyring, client: AsyncClient, *, region: str) -> None:
        self._brain = brain
        self._keyring = keyring
        self._client = client
        self._region = region
        self._failing_tables: dict[str, None] = {}
        """Tables whose last query failed. Only the first failure and the last recovery are logged."""
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Copy all tables, each in its own task, until cancelled or this server no longer leads."""
        sources = self._build_sources()
        tasks = [
            self._brain.world.start_task(
                self._follow_table(replicated, sources[replicated.table.name]), name=f"copy {replicated.table.name}"
            )
            for replicated in REPLICATED_TABLES
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_tasks(*tasks)

    async def _follow_table(self, replicated: ReplicatedTable, source: ReplicationSource) -> None:
        """Copy a table at once, then each time it changes in the authoritative region. Failures are retried."""
        index = 0
        backoff = Backoff(self._brain.world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        while self._brain.is_leading:
            try:
                reply = await (
                    source.list_stubs(index=index, wait_s=BLOCKING_QUERY_WAIT_S) if index else source.list_stubs()
                )
                await self._replicate_table(replicated, source, reply.value)
            except (Refusal, Unreachable) as error:
                self._on_failure(replicated, error)
                # Not everything was written: query again without waiting for another change.
                index = 0
                await asyncio.sleep(backoff.next_delay_s(get_requested_delay_s(error)))
                continue
            self._on_success(replicated)
            # A lower index than before means that the log of that region was replaced.
            index = reply.index if reply.index >= index else 0
            backoff.reset()

    # -- comparison ------------------------------------------------------------------------------------------------

    async def _replicate_table(
        self, replicated: ReplicatedTable, source: ReplicationSource, stubs: Iterable[Any]
    ) -> None:
        """Make the local table equal to the list `stubs`.

        Records whose hash differs are fetched and written in batches.
        """
        await self._check_permission()
        table, replica = replicated.table, self._brain.replica
        stubs_by_key = {table.get_key(stub): stub for stub in stubs if source.should_replicate(stub)}
        stored = {key: replica.get_table_records(table).records.get(key) for key in stubs_by_key}
        records = {key: record for key, record in stored.items() if record is not None}
        differing_keys = iter(
            [
                key
                for key, record in stored.items()
                if record is None or replicated.get_version(record) != replicated.get_version(stubs_by_key[key])
            ]
        )
        while True:
            keys = list(islice(differing_keys, MAX_FETCHED_PER_WRITE))
            for key in keys:
                record = await source.fetch(stubs_by_key[key])
                if record is not None:
                    records[key] = record
            await self._write(replicated, list(records.values()))
            if not keys:
                return

    async def _check_permission(self) -> None:
        """Raise `Refusal` unless the token is a management token.

        Another token may not see all records, and records that it does not see would be deleted here.
        """
        own_token = (await self._client.acl.tokens.read_own()).value
        if own_token.type != TokenType.MANAGEMENT:
            raise Refusal(
                RefusalCode.FORBIDDEN,
                "acl.replication_token is not a management token of the authoritative region, or access control is "
                "off there",
            )

    async def _write(self, replicated: ReplicatedTable, records: list[ReplicatedRecord]) -> None:
        """Write the differences between the local table and the records, in as many writes as needed."""
        max_changes = self._brain.max_changes

        def decide_next_write(snapshot: Replica, _context: object) -> Decision[bool]:
            writes = replication.build_replication_writes(
                snapshot, replicated, records, region=self._region, max_changes=max_changes
            )
            write = next(writes, None)
            return Decision(write, lambda _index: write is not None)

        while await self._brain.execute(decide_next_write):
            pass

    # -- log -------------------------------------------------------------------------------------------------------

    def _on_failure(self, replicated: ReplicatedTable, error: Exception) -> None:
        """Record that copying a table failed. It is logged only if no other table is failing."""
        if not self._failing_tables:
            log.warning("replication failed, will retry region=%s reason=%s", self._region, error)
        self._failing_tables[replicated.table.name] = None

    def _on_success(self, replicated: ReplicatedTable) -> None:
        """Record that a table was copied. If it was the last failing one, the recovery is logged."""
        if replicated.table.name not in self._failing_tables:
            return
        del self._failing_tables[replicated.table.name]
        if not self._failing_tables:
            log.info("replication works again region=%s", self._region)

    # -- tables ----------------------------------------------------------------------------------------------------

    def _build_sources(self) -> dict[str, ReplicationSource]:
        """Return the source of each replicated table, by table name."""
        client, acl = self._client, self._client.acl
        by_table: dict[Table[Any], ReplicationSource] = {
            QUOTAS: ReplicationSource(client.quotas.list, _use_stub),
            NAMESPACES: ReplicationSource(client.namespaces.list, _use_stub),
            NODE_POOLS: ReplicationSource(client.node_pools.list, _use_stub),
            ACL_POLICIES: ReplicationSource(acl.policies.list, self._fetch_policy),
            ACL_ROLES: ReplicationSource(acl.roles.list, _use_stub),
            ACL_AUTH_METHODS: ReplicationSource(acl.auth_methods.list, self._fetch_auth_method),
            ACL_BINDING_RULES: ReplicationSource(acl.binding_rules.list, _use_stub),
            ACL_TOKENS: ReplicationSource(acl.tokens.list, self._fetch_token, lambda stub: stub.global_),
        }
        return {table.name: source for table, source in by_table.items()}

    async def _fetch_policy(self, stub: acl_wire.PolicyStub) -> Policy | None:
        """Return the policy, or None if it was deleted meanwhile."""
        try:
            view = (await self._client.acl.policies.read(stub.name)).value
        except NotFound:
            return None
        return Policy(
            name=view.name, description=view.description, rules=view.rules, job_acl=view.job_acl, hash=view.hash
        )

    async def _fetch_token(self, stub: acl_wire.TokenStub) -> Token | None:
        """Return the token with its secret encrypted by this region's keyring.

        None: it was deleted meanwhile, or created again as a token of that region only.
        """
        try:
            view = (await self._client.acl.tokens.read(stub.accessor_id)).value
        except NotFound:
            return None
        if not view.global_:
            return None
        await self._ensure_active_key()
        replica = self._brain.replica
        sealed = self._keyring.seal(replica, view.secret_id.encode(), context=make_token_context(view.accessor_id))
        return Token(
            accessor_id=view.accessor_id,
            secret_digest=hash_secret(view.secret_id),
            secret_sealed=sealed.data,
            sealed_with=sealed.key_id,
            name=view.name,
            type=view.type,
            policies=view.policies,
            roles=None if view.roles is None else tuple(RoleLink(id=link.id) for link in view.roles),
            global_=True,
            hash=view.hash,
            create_time=view.create_time,
            expiration_time=view.expiration_time,
            expiration_ttl=_to_ns(view.expiration_ttl),
        )

    async def _fetch_auth_method(self, stub: acl_wire.AuthMethodStub) -> AuthMethod | None:
        """Return the auth method with its secrets, or None if it was deleted meanwhile."""
        try:
            view = (await self._client.acl.auth_methods.read(stub.name)).value
        except NotFound:
            return None
        fields = {name: getattr(view, name) for name in AuthMethod.__struct_fields__ if hasattr(view, name)}
        fields |= {"max_token_ttl": _to_ns(view.max_token_ttl), "config": _parse_config_view(view.config)}
        if REDACTED_TEXT.encode() in msgspec.json.encode(view.config):
            sealed = await self._fetch_auth_method_secrets(stub.name)
            if sealed is None:
                return None
            fields |= {"secrets_sealed": sealed.data, "sealed_with": sealed.key_id}
        return AuthMethod(**fields)

    async def _fetch_auth_method_secrets(self, name: str) -> SealedData | None:
        """Return the secrets of an auth method, encrypted by this region's keyring.

        They arrive encrypted for this server only. None: the auth method was deleted meanwhile.
        """
        recipient = MessageRecipient(self._brain.world)
        try:
            reply = await self._client.acl.auth_methods.read_sealed_secrets(name, recipient.public_key)
        except NotFound:
            return None
        context = make_auth_method_context(name)
        plain = recipient.open(SealedMessage(reply.sender, reply.sealed), context=context)
        await self._ensure_active_key()
        return self._keyring.seal(self._brain.replica, plain, context=context)

    async def _ensure_active_key(self) -> None:
        """Create the first key of the keyring, if it has no active key."""
        if self._keyring.find_active_key(self._brain.replica) is None:
            rotation = KeyRotationRequest(await self._keyring.make_key(), only_first=True)
            await self._brain.execute(lambda snapshot, _context: keyring.rotate_key(snapshot, rotation))


async def _use_stub(record: ReplicatedRecord) -> ReplicatedRecord:
    """Return the list item unchanged: lists of this table contain whole records, so nothing is fetched."""
    return record


def _parse_config_view(view: acl_wire.AuthMethodConfigView | None) -> AuthMethodConfig | None:
    """Return the stored form of an auth method's configuration."""
    if view is None:
        return None
    fields = {name: getattr(view, name) for name in AuthMethodConfig.__struct_fields__}
    leeway_names = ("expiration_leeway", "not_before_leeway", "clock_skew_leeway")
    return AuthMethodConfig(**fields | {name: _to_ns(fields[name]) for name in leeway_names})


def _to_ns(duration: times.DurationText) -> int:
    """Return a duration of the API, a number or a text such as "30s", in nanoseconds; an empty text is 0."""
    return duration if isinstance(duration, int) else parse_duration_ns(duration) if duration else 0
