"""A duty of the leader in every region but the authoritative one: replicates global records from that region.

Blocking queries wait for changes. When one returns, whole lists are compared and only records that differ are fetched.
Records that grant rights are read as they were at one moment, and `operations.access_replication` decides in which writes
they are applied. `operations.replication` does so for the other tables. Secrets arrive encrypted for this server and are encrypted with
this region's keyring before they are written. Local tokens are never changed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from wharf.cluster.operations import access_replication, keyring, replication
from wharf.cluster.operations.access_replication import AccessRecords, WriteSize
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.keyring import KeyRotationRequest, make_auth_method_context, make_token_context
from wharf.cluster.operations.replication import RIGHTS_TABLES, SEPARATE_TABLES, TOKENS, ReplicatedTable
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
from wharf.contract.client.flow import NO_RETRIES, ClientDefaults
from wharf.contract.client.transport import Transport, Unreachable
from wharf.contract.model.acl.auth_methods import REDACTED_TEXT, AuthMethod, AuthMethodConfig
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.tokens import RoleLink, Token, TokenType
from wharf.contract.model.log import Write
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.secrets import SealedData, hash_secret
from wharf.contract.model.times import DurationError, parse_duration_ns
from wharf.contract.wire import acl as acl_wire
from wharf.contract.wire import times
from wharf.world import World
from wharf.world.backoff import Backoff
from wharf.world.tasks import cancel_tasks, run_until_first

log = logging.getLogger(__name__)

BLOCKING_QUERY_WAIT_S: Final = 300.0
"""How long a query waits for a change. Then the whole table is compared again, changed or not."""

MAX_FETCHED_PER_WRITE: Final = 50
"""Fetched records are written after this many, so that an interruption loses little."""

MAX_READ_ATTEMPTS: Final = 5
"""How often the records that grant rights are read before the pass fails, if the source changes during each."""
COMPARED_PER_STEP: Final = 500
"""List items that are compared before the event loop runs other callbacks: about a millisecond."""
MIN_PASS_INTERVAL_S: Final = 0.2
"""Pause between two passes over the records that grant rights; limits the work while tokens are created all the time."""
ACCESS_CONTROL: Final = "access_control"
"""The name of the records that grant rights, which are copied as one set."""

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


def build_source_client(world: World, transports: Sequence[Transport], *, region: str) -> AsyncClient:
    """Return a client of the servers of the authoritative region.

    Its requests name the region, so that a server of another region, whose address is configured by mistake, refuses them
    or relays them to the authoritative region. Its records would replace those of this region otherwise.
    """
    return AsyncClient(world, transports, defaults=ClientDefaults(region=region), retry_policy=NO_RETRIES)


class _AccessControl(NamedTuple):
    """What one pass read from the authoritative region."""

    records: AccessRecords
    new_tokens: list[acl_wire.TokenStub]
    """List items of the tokens that this region does not have."""
    indexes: dict[str, int]
    """By table, the log index of the list."""


class _SourceChanged(Exception):
    """The records of the source changed while they were read, so they do not belong to one moment."""

    def __init__(self, tokens: list[acl_wire.TokenStub]) -> None:
        """`tokens`: the list items of its global tokens."""
        super().__init__("the source changed while it was read")
        self.tokens = tokens


class ReplicationDuty:
    """Copies all global records from the authoritative region while the brain leads.

    `client`: the result of `build_source_client`, with a management token of that region.
    """

    def __init__(self, brain: Brain, keyring: Keyring, client: AsyncClient, *, region: str) -> None:
        self._brain = brain
        self._keyring = keyring
        self._client = client
        self._region = region
        self._failing_tables: dict[str, None] = {}
        """Tables whose last query failed. Only the first failure and the last recovery are logged."""
        self._sources = self._build_sources()
        brain.duties.append(self.run)

    async def run(self) -> None:
        """Copy all tables until cancelled or this server no longer leads.

        Tables that grant rights are copied as one set, and the others each in its own task.
        """
        copies = {
            replicated.table.name: self._follow_table(replicated, self._sources[replicated.table.name])
            for replicated in SEPARATE_TABLES
        }
        copies[ACCESS_CONTROL] = self._follow_access_control()
        tasks = [self._brain.world.start_task(copy, name=f"copy {name}") for name, copy in copies.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_tasks(*tasks)

    async def _follow_table(self, replicated: ReplicatedTable, source: ReplicationSource) -> None:
        """Copy a table at once, then each time it changes in the authoritative region. Failures are retried."""
        name = replicated.table.name
        index = 0
        backoff = Backoff(self._brain.world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        while self._brain.is_leading:
            try:
                reply = await (
                    source.list_stubs(index=index, wait_s=BLOCKING_QUERY_WAIT_S) if index else source.list_stubs()
                )
                await self._check_permission()
                await self._write(replicated, reply.value)
            except (Refusal, Unreachable) as error:
                self._on_failure(name, error)
                # Not everything was written: query again without waiting for another change.
                index = 0
                await asyncio.sleep(backoff.next_delay_s(get_requested_delay_s(error)))
                continue
            self._on_success(name)
            # A lower index than before means that the log of that region was replaced.
            index = reply.index if reply.index >= index else 0
            backoff.reset()

    async def _write(self, replicated: ReplicatedTable, records: list[ReplicatedRecord]) -> None:
        """Write the differences between the local table and the records, in as many writes as needed."""
        max_changes = self._brain.max_changes
        await self._write_all(
            lambda snapshot: next(
                replication.build_replication_writes(
                    snapshot, replicated, records, region=self._region, max_changes=max_changes
                ),
                None,
            )
        )

    async def _write_all(self, build_write: Callable[[Replica], Write | None]) -> None:
        """Commit the writes that the function returns, one after the other, until it returns `None`."""

        def decide(snapshot: Replica, _context: object) -> Decision[bool]:
            write = build_write(snapshot)
            return Decision(write, lambda _index: write is not None)

        while await self._brain.execute(decide, is_long=True):
            pass

    # -- access control --------------------------------------------------------------------------------------------

    async def _follow_access_control(self) -> None:
        """Copy the records that grant rights at once, then each time one of them changes. Failures are retried."""
        indexes: dict[str, int] = {}
        backoff = Backoff(self._brain.world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        while self._brain.is_leading:
            try:
                if indexes:
                    await self._wait_for_change(indexes)
                indexes = await self._replicate_access_control()
            except (Refusal, Unreachable) as error:
                self._on_failure(ACCESS_CONTROL, error)
                indexes = {}
                await asyncio.sleep(backoff.next_delay_s(get_requested_delay_s(error)))
                continue
            self._on_success(ACCESS_CONTROL)
            backoff.reset()
            await asyncio.sleep(MIN_PASS_INTERVAL_S)

    async def _wait_for_change(self, indexes: dict[str, int]) -> None:
        """Return when one of the tables has changed since its index, or after `BLOCKING_QUERY_WAIT_S`."""

        async def wait(name: str, index: int) -> None:
            await self._sources[name].list_stubs(index=max(1, index), wait_s=BLOCKING_QUERY_WAIT_S, per_page=1)

        waits = {name: wait(name, index) for name, index in indexes.items()}
        tasks = await run_until_first(self._brain.world, **waits)
        errors = [task.exception() for task in tasks if not task.cancelled()]  # Several may fail at the same time.
        if error := next(filter(None, errors), None):
            raise error

    async def _replicate_access_control(self) -> dict[str, int]:
        """Make this region's records that grant rights equal to those of the source. Return the indexes of its tables."""
        size = WriteSize(self._brain.max_changes)
        listed_tokens: list[acl_wire.TokenStub] = []
        for _ in range(MAX_READ_ATTEMPTS):
            try:
                records, new_tokens, indexes = await self._read_access_control()
            except _SourceChanged as changed:
                listed_tokens = changed.tokens
                continue
            break
        else:
            await self._revoke_tokens(listed_tokens, size)
            raise Refusal(
                RefusalCode.UNAVAILABLE,
                f"policies, roles, auth methods or binding rules changed during each of {MAX_READ_ATTEMPTS} attempts to "
                "read them",
            )
        await self._write_all(
            lambda snapshot: access_replication.build_access_write(snapshot, records, region=self._region, size=size)
        )
        remaining = iter(new_tokens)
        while stubs := list(islice(remaining, MAX_FETCHED_PER_WRITE)):
            tokens = await self._fetch_listed(TOKENS, stubs)
            await self._write_all(
                lambda snapshot, tokens=tokens: access_replication.build_token_write(  # type: ignore[misc]
                    snapshot, tokens, region=self._region, size=size
                )
            )
        return indexes

    async def _revoke_tokens(self, listed_tokens: list[acl_wire.TokenStub], size: WriteSize) -> None:
        """Delete the tokens that the source deleted or created again.

        They must not stay valid here while other records of the source change all the time.
        """
        await self._check_permission()
        await self._write_all(
            lambda snapshot: access_replication.build_revocation_write(
                snapshot, listed_tokens, region=self._region, size=size
            )
        )

    async def _read_access_control(self) -> "_AccessControl":
        """Return all policies, roles, auth methods, binding rules and global tokens as they were at one moment.

        Of the tokens, those that this region has are complete, and the others are list items. Raises `_SourceChanged` if
        something other than a token changed meanwhile.
        """
        lists = {replicated.table.name: await self._list(replicated) for replicated in RIGHTS_TABLES}
        tokens = await self._list(TOKENS)
        stubs = [stub for stub in tokens.value if stub.global_]
        indexes = {name: reply.index for name, reply in lists.items()}
        by_table = {replicated.table.name: lists[replicated.table.name].value for replicated in RIGHTS_TABLES}
        by_table[ACL_BINDING_RULES.name] = access_replication.list_effective_rules(
            by_table[ACL_BINDING_RULES.name], by_table[ACL_AUTH_METHODS.name]
        )
        for replicated in RIGHTS_TABLES:
            name = replicated.table.name
            records = await self._fetch_listed(replicated, by_table[name])
            if len(records) != len(by_table[name]):
                raise _SourceChanged(stubs)
            by_table[name] = records
        stored = self._brain.replica.get_table_records(ACL_TOKENS).records
        known_tokens = await self._fetch_listed(TOKENS, [stub for stub in stubs if stub.accessor_id in stored])
        new_tokens = [stub for stub in stubs if stub.accessor_id not in stored]
        for replicated in RIGHTS_TABLES:
            current = await self._sources[replicated.table.name].list_stubs(per_page=1)
            if current.index != indexes[replicated.table.name]:
                raise _SourceChanged(stubs)
        await self._check_permission()
        return _AccessControl(
            AccessRecords(by_table, known_tokens), new_tokens, {**indexes, TOKENS.table.name: tokens.index}
        )

    async def _list(self, replicated: ReplicatedTable) -> Response[list[Any]]:
        return await self._sources[replicated.table.name].list_stubs()

    async def _fetch_listed(self, replicated: ReplicatedTable, stubs: Iterable[Any]) -> list[ReplicatedRecord]:
        """Return the records of the list items: those of this region where they are equal, and the others read.

        Records that changed or were deleted since they were listed are left out.
        """
        table, replica = replicated.table, self._brain.replica
        source = self._sources[table.name]
        records = []
        for position, stub in enumerate(stubs, 1):
            if position % COMPARED_PER_STEP == 0:
                await asyncio.sleep(0)
            if replication.differs(replica, replicated, stub):
                record = await source.fetch(stub)
                if record is None or replicated.get_version(record) != replicated.get_version(stub):
                    continue
            else:
                record = replica.get_table_records(table).records[table.get_key(stub)]
            records.append(record)
        return records

    # -- rights ----------------------------------------------------------------------------------------------------

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

    # -- log -------------------------------------------------------------------------------------------------------

    def _on_failure(self, name: str, error: Exception) -> None:
        """Record that copying a table failed. It is logged only if no other table is failing."""
        if not self._failing_tables:
            log.warning("replication failed, will retry region=%s reason=%s", self._region, error)
        self._failing_tables[name] = None

    def _on_success(self, name: str) -> None:
        """Record that a table was copied. If it was the last failing one, the recovery is logged."""
        if name not in self._failing_tables:
            return
        del self._failing_tables[name]
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
            ACL_TOKENS: ReplicationSource(acl.tokens.list, self._fetch_token),
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
    """Return a duration of the API, a number or a text such as "30s", in nanoseconds; an empty text is 0.

    Raises `Refusal` if the authoritative region sent something else.
    """
    if isinstance(duration, int):
        return duration
    try:
        return parse_duration_ns(duration) if duration else 0
    except DurationError as error:
        raise Refusal(RefusalCode.UNAVAILABLE, f"invalid reply from the authoritative region: {error}") from error
