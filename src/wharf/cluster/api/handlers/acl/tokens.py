"""Endpoints of tokens, and of what a caller may do.

A secret is sent only when it is created, to its owner, and to management tokens that read a token by accessor.
"""

import datetime
import logging
from typing import Final

from wharf.cluster.access import Caller, CallerKind, deny
from wharf.cluster.api.lists.listing import Listing, list_by_creation
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import UUID_PATTERN, format_optional_duration, parse_duration_field
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler, find_record
from wharf.cluster.operations.acl import bootstrap, tokens
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.keyring import make_token_context
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_BOOTSTRAP, ACL_POLICIES, ACL_ROLES, ACL_TOKENS
from wharf.cluster.state.watches import watch_key, watch_table
from wharf.contract.model.acl.permissions import DenialDetail
from wharf.contract.model.acl.policies import ANONYMOUS_POLICY
from wharf.contract.model.acl.tokens import RoleLink, Token, TokenType
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.secrets import NewSecret, SealedData, hash_secret
from wharf.contract.model.times import DecisionContext
from wharf.contract.wire import acl as acl_wire
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME

log = logging.getLogger(__name__)

TOKEN_NOT_FOUND_TEXT: Final = "ACL token not found"
ZERO_TIME: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)
"""The time that Go clients send for "no expiration". Each other time is an expiration, so a past one is refused."""


class TokenReads:
    """Reads tokens."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def list_tokens(self, replica: Replica, _request: Request, options: QueryOptions) -> Listing[Token]:
        """List the tokens without their secrets, in the order of their creation."""
        return list_by_creation(
            replica,
            ACL_TOKENS,
            options,
            ACL_ROLES,
            error_prefix="token lookup failed: ",
            build_view=lambda token: build_token_stub(replica, token),
        )

    def read_own_token(self, replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
        """Return the token of the caller, or a pseudo token for anonymous callers and while access control is off."""
        caller = request.caller
        if not self._server.access.settings.is_enabled:
            disabled = acl_wire.TokenView(
                accessor_id="acls-disabled", name="ACLs disabled token", type=TokenType.CLIENT
            )
            return ReadResult(disabled, replica.get_last_change(ACL_TOKENS), [watch_table(ACL_TOKENS)])
        if caller.kind is CallerKind.ANONYMOUS:
            anonymous = acl_wire.TokenView(
                accessor_id=ANONYMOUS_POLICY,
                name="Anonymous Token",
                type=TokenType.CLIENT,
                policies=(ANONYMOUS_POLICY,),
            )
            return ReadResult(anonymous, replica.get_last_change(ACL_TOKENS), [watch_table(ACL_TOKENS)])
        if caller.token is None:
            return ReadResult(
                MissingRecord(TOKEN_NOT_FOUND_TEXT),
                replica.get_last_change(ACL_TOKENS),
                [watch_table(ACL_TOKENS)],
            )
        return self._build_result(replica, caller.token)

    def read_token(self, replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
        """Return a token with its secret. Raises `Refusal` unless it is the caller's own or the caller is management."""
        accessor_id = request.get_path_value("accessor_id")
        caller = request.caller
        is_own = caller.accessor_id == accessor_id != ""
        if not caller.rights.is_management and not is_own:
            raise deny(caller, "the rights of a management token, to read another token", DenialDetail.TOKEN)
        check_uuid(accessor_id)
        token, index, watched = find_record(replica, ACL_TOKENS, accessor_id, missing_text=TOKEN_NOT_FOUND_TEXT)
        if isinstance(token, MissingRecord):
            return ReadResult(token, index, watched)
        return self._build_result(replica, token)

    def _build_result(self, replica: Replica, token: Token) -> ReadResult:
        """Return the token with its secret, and what a blocking query on it watches."""
        view = TokenSecrets(self._server).build_view(replica, token)
        return ReadResult(view, token.modify_index, [watch_key(ACL_TOKENS, token.accessor_id)])


class TokenSecrets:
    """Encrypts and decrypts the secrets of tokens."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def ensure_sealing_key(self) -> None:
        """Create the first key of the keyring, if it has none to encrypt secrets with."""
        await self._server.access.ensure_active_key(self._server.replica, self._server.leader)

    def seal_secret(self, snapshot: Replica, accessor_id: str, secret: str) -> NewSecret:
        """Return the digest of a token's secret and its encrypted form, which only the token `accessor_id` can use."""
        keyring = self._server.access.keyring
        return NewSecret(
            hash_secret(secret), keyring.seal(snapshot, secret.encode(), context=make_token_context(accessor_id))
        )

    def build_view(self, snapshot: Replica, token: Token) -> acl_wire.TokenView:
        """Return the token as its reader sees it, with its secret decrypted."""
        return build_token_view(snapshot, token, secret_id=self.open_secret(snapshot, token))

    def open_secret(self, snapshot: Replica, token: Token) -> str:
        """Return the decrypted secret of a token."""
        sealed = SealedData(token.secret_sealed, token.sealed_with)
        return self._server.access.keyring.open(
            snapshot, sealed, context=make_token_context(token.accessor_id)
        ).decode()


class TokenActions:
    """Writes tokens."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._secrets = TokenSecrets(server)

    async def bootstrap_acl(self, request: Request) -> ActionResult:
        """Create the first management token and return it with its secret.

        The caller may choose the secret in the body. Raises `Refusal` if a token was created this way before.
        """
        own_secret = request.decode_body(acl_wire.BootstrapRequest).bootstrap_secret if request.body else ""
        if own_secret:
            bootstrap.check_bootstrap_secret(own_secret)
        world, access = self._server.world, self._server.access
        await self._secrets.ensure_sealing_key()
        accessor_id, secret = world.new_id(), own_secret or world.new_secret()
        is_repeated = False

        def decide(snapshot: Replica, context: DecisionContext) -> Decision[tokens.TokenWriteResult]:
            nonlocal is_repeated
            is_repeated = snapshot.get(ACL_BOOTSTRAP) is not None
            sealed = self._secrets.seal_secret(snapshot, accessor_id, secret)
            return bootstrap.bootstrap_acl(
                snapshot,
                accessor_id,
                sealed,
                context,
                reset_text=access.read_bootstrap_reset() if is_repeated else None,
            )

        result = await self._server.writer.execute(decide)
        if is_repeated:
            log.warning("another first token was created with the reset file", extra={"accessor_id": accessor_id})
        return self._build_result(result, secret)

    async def create_token(self, request: Request) -> ActionResult:
        """Create the token of the body, import it with its ids, or update the existing token that the body names."""
        body = request.decode_body(acl_wire.TokenRequest)
        return await self._update(body) if self._is_update(body) else await self._create(body)

    async def update_token(self, request: Request) -> ActionResult:
        """Replace the token of the path. Raises `Refusal` if the body names another token."""
        accessor_id = request.get_path_value("accessor_id")
        body = request.decode_body(acl_wire.TokenRequest)
        if body.accessor_id != accessor_id:
            raise invalid_request("ACL token accessor does not match request path")
        check_uuid(accessor_id)
        return await self._update(body)

    def _is_update(self, body: acl_wire.TokenRequest) -> bool:
        """Return whether a request to create a token means an existing token, which it updates.

        A body without ids creates a token. A body with the accessor id and secret id of an unknown token imports that
        token. Raises `Refusal` if the ids are invalid.
        """
        if not body.accessor_id:
            if body.secret_id:
                raise invalid_request("missing AccessorID: a token is imported with both of its ids")
            return False
        check_uuid(body.accessor_id)
        if not body.secret_id or self._server.replica.get(ACL_TOKENS, body.accessor_id) is not None:
            return True
        if UUID_PATTERN.fullmatch(body.secret_id) is None:
            raise invalid_request("invalid secret ID: it must be a UUID")
        if body.type != TokenType.CLIENT:
            raise invalid_request("only client tokens can be imported with their ids")
        return False

    async def _create(self, body: acl_wire.TokenRequest) -> ActionResult:
        """Create a token, or import one if the body contains its ids. Return it with its secret."""
        world = self._server.world
        await self._secrets.ensure_sealing_key()
        accessor_id, secret = body.accessor_id or world.new_id(), body.secret_id or world.new_secret()
        token = build_token(body, accessor_id)
        limits = self._server.access.settings.lifetime_limits
        result = await self._server.writer.execute(
            lambda snapshot, context: tokens.create_token(
                snapshot,
                token,
                self._secrets.seal_secret(snapshot, accessor_id, secret),
                context,
                limits=limits,
                owns_global_records=self._server.owns_global_records,
            )
        )
        return self._build_result(result, secret)

    async def _update(self, body: acl_wire.TokenRequest) -> ActionResult:
        """Replace an existing token and return it with its secret."""
        token = build_token(body, body.accessor_id)
        result = await self._server.writer.execute(
            lambda snapshot, _context: tokens.update_token(
                snapshot, token, owns_global_records=self._server.owns_global_records
            )
        )
        return ActionResult(self._secrets.build_view(self._server.replica, result.token), result.index)

    async def delete_token(self, request: Request) -> ActionResult:
        accessor_id = request.get_path_value("accessor_id")
        index = await self._server.writer.execute(
            lambda snapshot, _context: tokens.delete_token(
                snapshot, accessor_id, owns_global_records=self._server.owns_global_records
            )
        )
        return ActionResult(None, index)

    async def create_one_time_token(self, request: Request) -> ActionResult:
        """Create a one-time token that can be exchanged for the caller's token."""
        secret = self._server.world.new_secret()
        caller: Caller = request.caller
        ttl_ns = request.get_number("ttl", default=tokens.ONE_TIME_TOKEN_TTL_NS)
        result = await self._server.writer.execute(
            lambda snapshot, context: tokens.create_one_time_token(
                snapshot, caller, hash_secret(secret), context, ttl_ns=ttl_ns
            )
        )
        created = result.one_time_token
        view = acl_wire.OneTimeTokenView(
            one_time_secret_id=secret,
            accessor_id=created.accessor_id,
            expires_at=created.expires_at,
            create_index=created.create_index,
            modify_index=created.modify_index,
        )
        return ActionResult(acl_wire.OneTimeTokenReply(one_time_token=view, index=result.index), result.index)

    async def exchange_one_time_token(self, request: Request) -> ActionResult:
        """Return the token for which a one-time secret was created, with its secret.

        The one-time secret becomes invalid.
        """
        secret = request.decode_body(acl_wire.OneTimeTokenExchangeRequest).one_time_secret_id
        if UUID_PATTERN.fullmatch(secret) is None:
            raise invalid_request("invalid one-time secret ID: it must be a UUID")
        result = await self._server.writer.execute(
            lambda snapshot, context: tokens.exchange_one_time_token(snapshot, hash_secret(secret), context)
        )
        token = self._secrets.build_view(self._server.replica, result.token)
        return ActionResult(acl_wire.OneTimeTokenExchangeReply(token=token, index=result.index), result.index)

    def _build_result(self, result: tokens.TokenWriteResult, secret: str) -> ActionResult:
        return ActionResult(build_token_view(self._server.replica, result.token, secret_id=secret), result.index)


def check_access(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return which of the named endpoints the caller may use, by the permissions that the endpoints declare.

    An endpoint may still refuse a request because of what it contains. Raises `Refusal` for an unknown endpoint.
    """
    names, path = request.get_texts("endpoint"), request.get_text("path")
    if len(names) > acl_wire.MAX_CHECKED_ENDPOINTS:
        raise invalid_request(f"endpoint: at most {acl_wire.MAX_CHECKED_ENDPOINTS} can be named, got {len(names)}")
    for name in names:
        if name not in ENDPOINT_BY_NAME:
            raise invalid_request(f'endpoint: no endpoint has the name "{name[:64]}"; the OpenAPI document lists all')
    is_anywhere = request.get_flag("anywhere")

    def may_use(name: str) -> bool:
        need = ENDPOINT_BY_NAME[name].need
        if is_anywhere:
            return not request.caller.is_refused and request.caller.rights.satisfies_anywhere(need)
        return request.has_permission(need, namespace=options.namespace, path=path, label=path)

    allowed = tuple(filter(may_use, dict.fromkeys(names)))
    return ReadResult(
        acl_wire.AccessCheck(allowed=allowed), replica.get_last_change(ACL_TOKENS, ACL_POLICIES, ACL_ROLES), []
    )


def build_read_handlers(server: Server) -> dict[str, ReadHandler]:
    reads = TokenReads(server)
    return {"acl.token.list": reads.list_tokens, "acl.token.read": reads.read_token}


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = TokenActions(server)
    return {
        "acl.bootstrap": actions.bootstrap_acl,
        "acl.token.create": actions.create_token,
        "acl.token.update": actions.update_token,
        "acl.token.delete": actions.delete_token,
        "acl.token.one-time": actions.create_one_time_token,
        "acl.token.exchange": actions.exchange_one_time_token,
    }


def check_uuid(accessor_id: str) -> None:
    """Raise a `Refusal` unless the accessor id is a UUID."""
    if UUID_PATTERN.fullmatch(accessor_id) is None:
        raise invalid_request("token lookup failed: the accessor ID is not a UUID")


def build_token(body: acl_wire.TokenRequest, accessor_id: str) -> Token:
    """Return the token that the body describes. Raises `Refusal` if a time is invalid.

    Exactly the zero time of Go clients means that the token does not expire.
    """
    expiration_time = body.expiration_time
    if expiration_time is not None and expiration_time == ZERO_TIME:
        expiration_time = None
    if expiration_time is not None and expiration_time.tzinfo is None:
        raise invalid_request("ExpirationTime: expected a time with a time zone (RFC 3339)")
    return Token(
        accessor_id=accessor_id,
        name=body.name,
        type=body.type,
        policies=body.policies,
        roles=body.roles,
        global_=body.global_,
        expiration_time=expiration_time,
        expiration_ttl=parse_duration_field(body.expiration_ttl, field="ExpirationTTL"),
    )


def build_token_stub(replica: Replica, token: Token) -> acl_wire.TokenStub:
    """Return the token as lists show it, without its secret."""
    return acl_wire.TokenStub(
        accessor_id=token.accessor_id,
        name=token.name,
        type=token.type,
        policies=token.policies,
        roles=_resolve_role_names(replica, token),
        global_=token.global_,
        hash=token.hash,
        create_time=token.create_time,
        expiration_time=token.expiration_time,
        create_index=token.create_index,
        modify_index=token.modify_index,
    )


def build_token_view(replica: Replica, token: Token, *, secret_id: str) -> acl_wire.TokenView:
    """Return the token with the given secret."""
    return acl_wire.TokenView(
        expiration_ttl=format_optional_duration(token.expiration_ttl),
        accessor_id=token.accessor_id,
        secret_id=secret_id,
        name=token.name,
        type=token.type,
        policies=token.policies,
        roles=_resolve_role_names(replica, token),
        global_=token.global_,
        hash=token.hash,
        create_time=token.create_time,
        expiration_time=token.expiration_time,
        create_index=token.create_index,
        modify_index=token.modify_index,
    )


def _resolve_role_names(replica: Replica, token: Token) -> tuple[RoleLink, ...] | None:
    """Return the links from the token to its roles, with the current role names; `None` if the token has no roles."""
    if token.roles is None:
        return None
    links = [(link, replica.get(ACL_ROLES, link.id)) for link in token.roles]
    return tuple(RoleLink(id=link.id, name=role.name if role is not None else link.name) for link, role in links)
