"""Endpoints of tokens. A SecretID leaves here only where it is made, to its owner, and to management by accessor."""

import re
from typing import Final

from wharf.access import Caller, CallerKind, denial
from wharf.api.answers import Act, Done, Missing, Reading
from wharf.api.durations import read_duration_ns, shown_duration
from wharf.api.listing import Listing, by_creation_or_prefix
from wharf.api.request import ReadOptions, Request
from wharf.model.need import Manner
from wharf.model.policy import ANONYMOUS
from wharf.model.refusal import invalid
from wharf.model.secret import NewSecret, Sealed, secret_digest
from wharf.model.token import RoleLink, Token, TokenType
from wharf.operations import bootstrap, tokens
from wharf.operations.keyring import about_token
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ACL_ROLES, ACL_TOKENS
from wharf.wire import access as shapes

UUID: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
NOT_FOUND: Final = "ACL token not found"
YEAR_OF_NO_TIME: Final = 1


class TokenReads:
    def __init__(self, server: Server) -> None:
        self._server = server

    def list_(self, replica: Replica, _request: Request, options: ReadOptions) -> Listing[Token]:
        return by_creation_or_prefix(
            replica, ACL_TOKENS, options, ACL_ROLES, where="token lookup failed: ", shown=lambda t: stub(replica, t)
        )

    def self_(self, replica: Replica, request: Request, _options: ReadOptions) -> Found:
        caller = request.caller
        if not self._server.access.settings.enabled:
            disabled = shapes.TokenShown(accessor_id="acls-disabled", name="ACLs disabled token", type=TokenType.CLIENT)
            return Found(disabled, replica.last_change(ACL_TOKENS), [watch.whole(ACL_TOKENS)])
        if caller.kind is CallerKind.ANONYMOUS:
            nobody = shapes.TokenShown(
                accessor_id=ANONYMOUS, name="Anonymous Token", type=TokenType.CLIENT, policies=(ANONYMOUS,)
            )
            return Found(nobody, replica.last_change(ACL_TOKENS), [watch.whole(ACL_TOKENS)])
        if caller.token is None:
            return Found(Missing(NOT_FOUND), replica.last_change(ACL_TOKENS), [watch.whole(ACL_TOKENS)])
        return self._found(replica, caller.token)

    def read(self, replica: Replica, request: Request, _options: ReadOptions) -> Found:
        accessor_id = request.value("accessor_id")
        caller = request.caller
        is_own = caller.accessor_id == accessor_id != ""
        if not caller.rights.is_management and not is_own:
            raise denial(caller, Manner.TOKEN)
        check_uuid(accessor_id)
        token = replica.get(ACL_TOKENS, accessor_id)
        if token is None:
            watched = [watch.one(ACL_TOKENS, accessor_id)]
            return Found(Missing(NOT_FOUND), replica.last_change(ACL_TOKENS), watched)
        return self._found(replica, token)

    def _found(self, replica: Replica, token: Token) -> Found:
        shown = TokenSecrets(self._server).shown(replica, token)
        return Found(shown, token.modify_index, [watch.one(ACL_TOKENS, token.accessor_id)])


class TokenSecrets:
    """Makes secrets of tokens, and opens them for the few who may see them."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def begin(self) -> None:
        """What follows is sealed: the ring needs a key."""
        await self._server.access.begin_ring(self._server.replica, self._server.leader)

    def seal(self, snapshot: Replica, accessor_id: str, secret: str) -> NewSecret:
        ring = self._server.access.keyring
        return NewSecret(secret_digest(secret), ring.seal(snapshot, secret.encode(), about=about_token(accessor_id)))

    def shown(self, snapshot: Replica, token: Token) -> shapes.TokenShown:
        """The token with its secret."""
        sealed = Sealed(token.secret_sealed, token.sealed_with)
        secret = self._server.access.keyring.open(snapshot, sealed, about=about_token(token.accessor_id))
        return shown(snapshot, token, secret_id=secret.decode())


class TokenWrites:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._secrets = TokenSecrets(server)

    async def bootstrap(self, request: Request) -> Done:
        given = request.read_body(shapes.BootstrapRequest).bootstrap_secret if request.body else ""
        if given:
            bootstrap.check_bootstrap_secret(given)
        world, access = self._server.world, self._server.access
        await self._secrets.begin()
        accessor_id, secret = world.new_id(), given or world.new_secret()
        written = await self._server.writer.write(
            lambda snapshot, moment: bootstrap.bootstrap(
                snapshot,
                accessor_id,
                self._secrets.seal(snapshot, accessor_id, secret),
                moment,
                reset=access.read_reset(),
            )
        )
        return self._done(written, secret)

    async def create(self, request: Request) -> Done:
        asked = request.read_body(shapes.TokenRequest)
        return await self._update(asked) if self._is_update(asked) else await self._create(asked)

    async def update(self, request: Request) -> Done:
        accessor_id = request.value("accessor_id")
        asked = request.read_body(shapes.TokenRequest)
        if asked.accessor_id != accessor_id:
            raise invalid("ACL token accessor does not match request path")
        check_uuid(accessor_id)
        return await self._update(asked)

    def _is_update(self, asked: shapes.TokenRequest) -> bool:
        """With an accessor it is about a token that is there; with both ids, one from elsewhere is taken in."""
        if not asked.accessor_id:
            if asked.secret_id:
                raise invalid("a token is taken in with both of its ids: AccessorID is missing")
            return False
        check_uuid(asked.accessor_id)
        if not asked.secret_id or self._server.replica.get(ACL_TOKENS, asked.accessor_id) is not None:
            return True
        if UUID.fullmatch(asked.secret_id) is None:
            raise invalid(f'invalid secret ID "{asked.secret_id}": it has the form of a UUID')
        if asked.type != TokenType.CLIENT:
            raise invalid("only client tokens may be taken in with their ids")
        return False

    async def _create(self, asked: shapes.TokenRequest) -> Done:
        world = self._server.world
        await self._secrets.begin()
        accessor_id, secret = asked.accessor_id or world.new_id(), asked.secret_id or world.new_secret()
        wanted = wanted_token(asked, accessor_id)
        bounds = self._server.access.settings.bounds
        written = await self._server.writer.write(
            lambda snapshot, moment: tokens.create(
                snapshot, wanted, self._secrets.seal(snapshot, accessor_id, secret), moment, bounds=bounds
            )
        )
        return self._done(written, secret)

    async def _update(self, asked: shapes.TokenRequest) -> Done:
        wanted = wanted_token(asked, asked.accessor_id)
        written = await self._server.writer.write(lambda snapshot, moment: tokens.update(snapshot, wanted, moment))
        return Done(self._secrets.shown(self._server.replica, written.token), written.index)

    async def delete(self, request: Request) -> Done:
        accessor_id = request.value("accessor_id")
        index = await self._server.writer.write(lambda snapshot, _moment: tokens.delete(snapshot, accessor_id))
        return Done(None, index)

    async def make_one_time(self, request: Request) -> Done:
        secret = self._server.world.new_secret()
        caller: Caller = request.caller
        written = await self._server.writer.write(
            lambda snapshot, moment: tokens.make_one_time(snapshot, caller, secret_digest(secret), moment)
        )
        made = written.one_time
        shown_once = shapes.OneTimeShown(
            one_time_secret_id=secret,
            accessor_id=made.accessor_id,
            expires_at=made.expires_at,
            create_index=made.create_index,
            modify_index=made.modify_index,
        )
        return Done(shapes.OneTimeReply(one_time_token=shown_once, index=written.index), written.index)

    async def exchange(self, request: Request) -> Done:
        secret = request.read_body(shapes.ExchangeRequest).one_time_secret_id
        if UUID.fullmatch(secret) is None:
            raise invalid(f'invalid one-time secret ID "{secret}": it has the form of a UUID')
        written = await self._server.writer.write(
            lambda snapshot, moment: tokens.exchange(snapshot, secret_digest(secret), moment)
        )
        token = self._secrets.shown(self._server.replica, written.token)
        return Done(shapes.ExchangeReply(token=token, index=written.index), written.index)

    def _done(self, written: tokens.TokenWritten, secret: str) -> Done:
        return Done(shown(self._server.replica, written.token, secret_id=secret), written.index)


def reads_of(server: Server) -> dict[str, Reading]:
    reads = TokenReads(server)
    return {"acl.token.list": reads.list_, "acl.token.read": reads.read}


def acts_of(server: Server) -> dict[str, Act]:
    writes = TokenWrites(server)
    return {
        "acl.bootstrap": writes.bootstrap,
        "acl.token.create": writes.create,
        "acl.token.update": writes.update,
        "acl.token.delete": writes.delete,
        "acl.token.one-time": writes.make_one_time,
        "acl.token.exchange": writes.exchange,
    }


def check_uuid(accessor_id: str) -> None:
    if UUID.fullmatch(accessor_id) is None:
        raise invalid(f'token lookup failed: "{accessor_id}" is no UUID')


def wanted_token(asked: shapes.TokenRequest, accessor_id: str) -> Token:
    ends = asked.expiration_time
    if ends is not None and ends.year == YEAR_OF_NO_TIME:
        ends = None
    if ends is not None and ends.tzinfo is None:
        raise invalid("ExpirationTime: expected a time with its zone (RFC 3339)")
    return Token(
        accessor_id=accessor_id,
        name=asked.name,
        type=asked.type,
        policies=asked.policies,
        roles=asked.roles,
        global_=asked.global_,
        expiration_time=ends,
        expiration_ttl=read_duration_ns(asked.expiration_ttl, field="ExpirationTTL"),
    )


def stub(replica: Replica, token: Token) -> shapes.TokenStub:
    return shapes.TokenStub(
        accessor_id=token.accessor_id,
        name=token.name,
        type=token.type,
        policies=token.policies,
        roles=_named(replica, token),
        global_=token.global_,
        hash=token.hash,
        create_time=token.create_time,
        expiration_time=token.expiration_time,
        create_index=token.create_index,
        modify_index=token.modify_index,
    )


def shown(replica: Replica, token: Token, *, secret_id: str) -> shapes.TokenShown:
    return shapes.TokenShown(
        expiration_ttl=shown_duration(token.expiration_ttl),
        accessor_id=token.accessor_id,
        secret_id=secret_id,
        name=token.name,
        type=token.type,
        policies=token.policies,
        roles=_named(replica, token),
        global_=token.global_,
        hash=token.hash,
        create_time=token.create_time,
        expiration_time=token.expiration_time,
        create_index=token.create_index,
        modify_index=token.modify_index,
    )


def _named(replica: Replica, token: Token) -> tuple[RoleLink, ...] | None:
    """The roles of a token under the names that they have now."""
    if token.roles is None:
        return None
    known = [(link, replica.get(ACL_ROLES, link.id)) for link in token.roles]
    return tuple(RoleLink(id=link.id, name=role.name if role is not None else link.name) for link, role in known)
