"""Endpoints of tokens. A SecretID leaves here only where it is made, to its owner, and to management by accessor."""

import re
from typing import Final

from wharf.cluster.access import Caller, CallerKind, build_denial
from wharf.cluster.api.lists.listing import Listing, list_by_creation
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.requests.values import format_optional_duration, parse_duration_field
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler
from wharf.cluster.operations.acl import bootstrap, tokens
from wharf.cluster.operations.keyring import make_token_context
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import ACL_ROLES, ACL_TOKENS
from wharf.contract.model.acl.permissions import DenialDetail
from wharf.contract.model.acl.policies import ANONYMOUS_POLICY
from wharf.contract.model.acl.tokens import RoleLink, Token, TokenType
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.secrets import NewSecret, SealedData, hash_secret
from wharf.contract.wire import acl as acl_wire

UUID_PATTERN: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
TOKEN_NOT_FOUND_TEXT: Final = "ACL token not found"
ZERO_TIME_YEAR: Final = 1


class TokenReads:
    def __init__(self, server: Server) -> None:
        self._server = server

    def list_tokens(self, replica: Replica, _request: Request, options: QueryOptions) -> Listing[Token]:
        return list_by_creation(
            replica,
            ACL_TOKENS,
            options,
            ACL_ROLES,
            error_prefix="token lookup failed: ",
            build_view=lambda t: build_token_stub(replica, t),
        )

    def read_own_token(self, replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
        caller = request.caller
        if not self._server.access.settings.is_enabled:
            disabled = acl_wire.TokenView(
                accessor_id="acls-disabled", name="ACLs disabled token", type=TokenType.CLIENT
            )
            return ReadResult(disabled, replica.get_last_change(ACL_TOKENS), [watch.watch_table(ACL_TOKENS)])
        if caller.kind is CallerKind.ANONYMOUS:
            nobody = acl_wire.TokenView(
                accessor_id=ANONYMOUS_POLICY,
                name="Anonymous Token",
                type=TokenType.CLIENT,
                policies=(ANONYMOUS_POLICY,),
            )
            return ReadResult(nobody, replica.get_last_change(ACL_TOKENS), [watch.watch_table(ACL_TOKENS)])
        if caller.token is None:
            return ReadResult(
                MissingRecord(TOKEN_NOT_FOUND_TEXT),
                replica.get_last_change(ACL_TOKENS),
                [watch.watch_table(ACL_TOKENS)],
            )
        return self._found(replica, caller.token)

    def read_token(self, replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
        accessor_id = request.get_path_value("accessor_id")
        caller = request.caller
        is_own = caller.accessor_id == accessor_id != ""
        if not caller.rights.is_management and not is_own:
            raise build_denial(caller, DenialDetail.TOKEN)
        check_uuid(accessor_id)
        token = replica.get(ACL_TOKENS, accessor_id)
        if token is None:
            watched = [watch.watch_key(ACL_TOKENS, accessor_id)]
            return ReadResult(MissingRecord(TOKEN_NOT_FOUND_TEXT), replica.get_last_change(ACL_TOKENS), watched)
        return self._found(replica, token)

    def _found(self, replica: Replica, token: Token) -> ReadResult:
        shown = TokenSecrets(self._server).build_view(replica, token)
        return ReadResult(shown, token.modify_index, [watch.watch_key(ACL_TOKENS, token.accessor_id)])


class TokenSecrets:
    """Makes secrets of tokens, and opens them for the few who may see them."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def ensure_sealing_key(self) -> None:
        """What follows is sealed: the ring needs a key."""
        await self._server.access.ensure_active_key(self._server.replica, self._server.leader)

    def seal_secret(self, snapshot: Replica, accessor_id: str, secret: str) -> NewSecret:
        ring = self._server.access.keyring
        return NewSecret(
            hash_secret(secret), ring.seal(snapshot, secret.encode(), context=make_token_context(accessor_id))
        )

    def build_view(self, snapshot: Replica, token: Token) -> acl_wire.TokenView:
        """The token with its secret."""
        sealed = SealedData(token.secret_sealed, token.sealed_with)
        secret = self._server.access.keyring.open(snapshot, sealed, context=make_token_context(token.accessor_id))
        return build_token_view(snapshot, token, secret_id=secret.decode())


class TokenActions:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._secrets = TokenSecrets(server)

    async def bootstrap_acl(self, request: Request) -> ActionResult:
        given = request.decode_body(acl_wire.BootstrapRequest).bootstrap_secret if request.body else ""
        if given:
            bootstrap.check_bootstrap_secret(given)
        world, access = self._server.world, self._server.access
        await self._secrets.ensure_sealing_key()
        accessor_id, secret = world.new_id(), given or world.new_secret()
        written = await self._server.writer.execute(
            lambda snapshot, moment: bootstrap.bootstrap_acl(
                snapshot,
                accessor_id,
                self._secrets.seal_secret(snapshot, accessor_id, secret),
                moment,
                reset_text=access.read_bootstrap_reset(),
            )
        )
        return self._done(written, secret)

    async def create_token(self, request: Request) -> ActionResult:
        asked = request.decode_body(acl_wire.TokenRequest)
        return await self._update(asked) if self._is_update(asked) else await self._create(asked)

    async def update_token(self, request: Request) -> ActionResult:
        accessor_id = request.get_path_value("accessor_id")
        asked = request.decode_body(acl_wire.TokenRequest)
        if asked.accessor_id != accessor_id:
            raise invalid_request("ACL token accessor does not match request path")
        check_uuid(accessor_id)
        return await self._update(asked)

    def _is_update(self, asked: acl_wire.TokenRequest) -> bool:
        """With an accessor it is about a token that is there; with both ids, one from elsewhere is taken in."""
        if not asked.accessor_id:
            if asked.secret_id:
                raise invalid_request("a token is taken in with both of its ids: AccessorID is missing")
            return False
        check_uuid(asked.accessor_id)
        if not asked.secret_id or self._server.replica.get(ACL_TOKENS, asked.accessor_id) is not None:
            return True
        if UUID_PATTERN.fullmatch(asked.secret_id) is None:
            raise invalid_request(f'invalid secret ID "{asked.secret_id}": it has the form of a UUID')
        if asked.type != TokenType.CLIENT:
            raise invalid_request("only client tokens may be taken in with their ids")
        return False

    async def _create(self, asked: acl_wire.TokenRequest) -> ActionResult:
        world = self._server.world
        await self._secrets.ensure_sealing_key()
        accessor_id, secret = asked.accessor_id or world.new_id(), asked.secret_id or world.new_secret()
        wanted = build_token(asked, accessor_id)
        bounds = self._server.access.settings.lifetime_limits
        written = await self._server.writer.execute(
            lambda snapshot, moment: tokens.create_token(
                snapshot, wanted, self._secrets.seal_secret(snapshot, accessor_id, secret), moment, limits=bounds
            )
        )
        return self._done(written, secret)

    async def _update(self, asked: acl_wire.TokenRequest) -> ActionResult:
        wanted = build_token(asked, asked.accessor_id)
        written = await self._server.writer.execute(
            lambda snapshot, moment: tokens.update_token(snapshot, wanted, moment)
        )
        return ActionResult(self._secrets.build_view(self._server.replica, written.token), written.index)

    async def delete_token(self, request: Request) -> ActionResult:
        accessor_id = request.get_path_value("accessor_id")
        index = await self._server.writer.execute(lambda snapshot, _moment: tokens.delete_token(snapshot, accessor_id))
        return ActionResult(None, index)

    async def create_one_time_token(self, request: Request) -> ActionResult:
        secret = self._server.world.new_secret()
        caller: Caller = request.caller
        written = await self._server.writer.execute(
            lambda snapshot, moment: tokens.create_one_time_token(snapshot, caller, hash_secret(secret), moment)
        )
        made = written.one_time_token
        shown_once = acl_wire.OneTimeTokenView(
            one_time_secret_id=secret,
            accessor_id=made.accessor_id,
            expires_at=made.expires_at,
            create_index=made.create_index,
            modify_index=made.modify_index,
        )
        return ActionResult(acl_wire.OneTimeTokenReply(one_time_token=shown_once, index=written.index), written.index)

    async def exchange_one_time_token(self, request: Request) -> ActionResult:
        secret = request.decode_body(acl_wire.OneTimeTokenExchangeRequest).one_time_secret_id
        if UUID_PATTERN.fullmatch(secret) is None:
            raise invalid_request(f'invalid one-time secret ID "{secret}": it has the form of a UUID')
        written = await self._server.writer.execute(
            lambda snapshot, moment: tokens.exchange_one_time_token(snapshot, hash_secret(secret), moment)
        )
        token = self._secrets.build_view(self._server.replica, written.token)
        return ActionResult(acl_wire.OneTimeTokenExchangeReply(token=token, index=written.index), written.index)

    def _done(self, written: tokens.TokenWriteResult, secret: str) -> ActionResult:
        return ActionResult(build_token_view(self._server.replica, written.token, secret_id=secret), written.index)


def build_read_handlers(server: Server) -> dict[str, ReadHandler]:
    reads = TokenReads(server)
    return {"acl.token.list": reads.list_tokens, "acl.token.read": reads.read_token}


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    writes = TokenActions(server)
    return {
        "acl.bootstrap": writes.bootstrap_acl,
        "acl.token.create": writes.create_token,
        "acl.token.update": writes.update_token,
        "acl.token.delete": writes.delete_token,
        "acl.token.one-time": writes.create_one_time_token,
        "acl.token.exchange": writes.exchange_one_time_token,
    }


def check_uuid(accessor_id: str) -> None:
    if UUID_PATTERN.fullmatch(accessor_id) is None:
        raise invalid_request(f'token lookup failed: "{accessor_id}" is no UUID')


def build_token(asked: acl_wire.TokenRequest, accessor_id: str) -> Token:
    ends = asked.expiration_time
    if ends is not None and ends.year == ZERO_TIME_YEAR:
        ends = None
    if ends is not None and ends.tzinfo is None:
        raise invalid_request("ExpirationTime: expected a time with its zone (RFC 3339)")
    return Token(
        accessor_id=accessor_id,
        name=asked.name,
        type=asked.type,
        policies=asked.policies,
        roles=asked.roles,
        global_=asked.global_,
        expiration_time=ends,
        expiration_ttl=parse_duration_field(asked.expiration_ttl, field="ExpirationTTL"),
    )


def build_token_stub(replica: Replica, token: Token) -> acl_wire.TokenStub:
    return acl_wire.TokenStub(
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


def build_token_view(replica: Replica, token: Token, *, secret_id: str) -> acl_wire.TokenView:
    return acl_wire.TokenView(
        expiration_ttl=format_optional_duration(token.expiration_ttl),
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
