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

from wharf.client.async_client import AsyncClient
from wharf.client.calls import Answer
from wharf.client.errors import NotFound
from wharf.client.exchange import Unreachable
from wharf.model.auth_method import REDACTED, AuthMethod, AuthMethodConfig
from wharf.model.policy import Policy
from wharf.model.refusal import Code, Refusal
from wharf.model.secret import Sealed, secret_digest
from wharf.model.token import RoleLink, Token, TokenType
from wharf.operations import keyring, replication
from wharf.operations.decision import Decision
from wharf.operations.keyring import RotationRequest, about_method, about_token
from wharf.operations.replication import COPIED, Copied
from wharf.server.brain import Brain
from wharf.server.keyring import Keyring
from wharf.server.letters import Letter, LetterBox
from wharf.state import Replica, Table
from wharf.state.tables import (
    ACL_AUTH_METHODS,
    ACL_BINDING_RULES,
    ACL_POLICIES,
    ACL_ROLES,
    ACL_TOKENS,
    NAMESPACES,
    NODE_POOLS,
    QUOTAS,
)
from wharf.wire import access as shapes
from wharf.wire.go_duration import parse_duration_ns

log = logging.getLogger(__name__)

WAIT_S: Final = 300.0
"""How long a question waits for a change. At its end all is compared again, changed or not."""

FETCHED_AT_ONCE: Final = 50
"""What was fetched is written before more is: after an interruption it need not be fetched again."""

AGAIN_LEAST_S: Final = 1.0
AGAIN_MOST_S: Final = 60.0

Fetched = Any
"""A record of one of the copied tables."""


class Source(NamedTuple):
    """How a table is asked for. `fetch`: a record of the list, whole; None where it cannot be copied or went meanwhile."""

    list_: Callable[..., Awaitable[Answer[list[Any]]]]
    fetch: Callable[[Any], Awaitable[Fetched | None]]
    is_given: Callable[[Any], bool] = lambda _stub: True


class Copying:
    """`authoritative`: a client of all servers of that region, with a management token of it."""

    def __init__(self, brain: Brain, ring: Keyring, authoritative: AsyncClient, *, region: str) -> None:
        self._brain = brain
        self._ring = ring
        self._client = authoritative
        self._region = region
        self._away: dict[str, None] = {}
        """Tables whose last question failed. The first of them is told of, and when the last is back."""
        brain.duties.append(self.copy)

    async def copy(self) -> None:
        """As long as the brain leads."""
        sources = self._sources()
        works = [
            self._brain.world.start(self._follow(copied, sources[copied.table.name]), name=f"copy {copied.table.name}")
            for copied in COPIED
        ]
        try:
            await asyncio.gather(*works)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _follow(self, copied: Copied, source: Source) -> None:
        index, again_s = 0, AGAIN_LEAST_S
        while self._brain.is_leading:
            try:
                answer = await (source.list_(index=index, wait_s=WAIT_S) if index else source.list_())
                await self._take(copied, source, answer.value)
            except (Refusal, Unreachable) as error:
                self._tell_away(copied, error)
                # What came was not written whole: it is asked for anew, without waiting for another change.
                index = 0
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, AGAIN_MOST_S)
                continue
            self._tell_back(copied)
            # An index that went back is that of a log which was replaced.
            index, again_s = (answer.index if answer.index >= index else 0), AGAIN_LEAST_S

    # -- comparing -------------------------------------------------------------------------------------------------

    async def _take(self, copied: Copied, source: Source, stubs: Iterable[Any]) -> None:
        """Make the table as it is there, some records at a time."""
        await self._check_rights()
        table, replica = copied.table, self._brain.follower.replica
        given = {table.key_of(stub): stub for stub in stubs if source.is_given(stub)}
        stored = {key: replica.rows(table).records.get(key) for key in given}
        known = {key: record for key, record in stored.items() if record is not None}
        differing = iter([key for key, record in stored.items() if record is None or record.hash != given[key].hash])
        while True:
            keys = list(islice(differing, FETCHED_AT_ONCE))
            for key in keys:
                record = await source.fetch(given[key])
                if record is not None:
                    known[key] = record
            await self._write(copied, list(known.values()))
            if not keys:
                return

    async def _check_rights(self) -> None:
        """A token with fewer rights would be shown less, and what it is not shown must not be taken for deleted."""
        own = (await self._client.acl.tokens.own()).value
        if own.type != TokenType.MANAGEMENT:
            raise Refusal(
                Code.FORBIDDEN, "acl.replication_token is no management token there, or access control is off there"
            )

    async def _write(self, copied: Copied, records: list[Fetched]) -> None:
        most = self._brain.changes_max

        def next_step(snapshot: Replica, _moment: object) -> Decision[bool]:
            steps = replication.copy_steps(snapshot, copied, records, region=self._region, changes_max=most)
            step = next(steps, None)
            return Decision(step, lambda _index: step is not None)

        while await self._brain.decide(next_step):
            pass

    # -- what is said of it ------------------------------------------------------------------------------------------

    def _tell_away(self, copied: Copied, error: Exception) -> None:
        if not self._away:
            log.warning(
                "nothing can be copied from the authoritative region %s: %s; trying again until it can",
                self._region,
                error,
            )
        self._away[copied.table.name] = None

    def _tell_back(self, copied: Copied) -> None:
        if self._away.pop(copied.table.name, self) is None and not self._away:
            log.info("what is global is copied from region %s again", self._region)

    # -- the tables --------------------------------------------------------------------------------------------------

    def _sources(self) -> dict[str, Source]:
        client, acl = self._client, self._client.acl
        by_table: dict[Table[Any], Source] = {
            QUOTAS: Source(client.quotas.list, _as_it_is),
            NAMESPACES: Source(client.namespaces.list, _as_it_is),
            NODE_POOLS: Source(client.node_pools.list, _as_it_is),
            ACL_POLICIES: Source(acl.policies.list, self._policy),
            ACL_ROLES: Source(acl.roles.list, _as_it_is),
            ACL_AUTH_METHODS: Source(acl.auth_methods.list, self._method),
            ACL_BINDING_RULES: Source(acl.binding_rules.list, _as_it_is),
            ACL_TOKENS: Source(acl.tokens.list, self._token, lambda stub: stub.global_),
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
        sealed = self._ring.seal(replica, shown.secret_id.encode(), about=about_token(shown.accessor_id))
        return Token(
            accessor_id=shown.accessor_id,
            secret_digest=secret_digest(shown.secret_id),
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
        if REDACTED.encode() in msgspec.json.encode(shown.config):
            sealed = await self._secrets_of(stub.name)
            if sealed is None:
                return None
            fields |= {"secrets_sealed": sealed.data, "sealed_with": sealed.key_id}
        return AuthMethod(**fields)

    async def _secrets_of(self, name: str) -> Sealed | None:
        """What no reply shows comes sealed for us alone, and is sealed by our own ring at once. None: it went meanwhile."""
        box = LetterBox(self._brain.world)
        try:
            told = await self._client.acl.auth_methods.secrets(name, box.address)
        except NotFound:
            return None
        plain = box.open(Letter(told.sender, told.sealed), about=about_method(name))
        await self._begin_ring()
        return self._ring.seal(self._brain.follower.replica, plain, about=about_method(name))

    async def _begin_ring(self) -> None:
        if self._ring.active_key(self._brain.follower.replica) is None:
            first = RotationRequest(await self._ring.make_key(), only_first=True)
            await self._brain.decide(lambda snapshot, _moment: keyring.rotate(snapshot, first))


async def _as_it_is(record: Fetched) -> Fetched:
    return record


def _config_of(shown: shapes.AuthMethodConfigShown | None) -> AuthMethodConfig | None:
    if shown is None:
        return None
    fields = {name: getattr(shown, name) for name in AuthMethodConfig.__struct_fields__}
    leeways = ("expiration_leeway", "not_before_leeway", "clock_skew_leeway")
    return AuthMethodConfig(**fields | {name: _ns(fields[name]) for name in leeways})


def _ns(shown: shapes.Lasting) -> int:
    return shown if isinstance(shown, int) else parse_duration_ns(shown) if shown else 0
