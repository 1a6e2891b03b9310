"""Authentication of callers and the access check of endpoints. Handlers check access to single records themselves.

Signed identities are verified by a port (`IdentityVerifier`), so this module holds no keys.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

import msgspec

from wharf.cluster.access import (
    UNCHECKED_CALLER,
    Caller,
    InvalidCredential,
    PresentedCredential,
    RightsNotCompiled,
    TokenSecret,
    authenticate_caller,
    build_denial,
    compile_rights,
    describe_denial,
    require_rights,
    store_rights,
)
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import UUID_CHARACTERS, UUID_PATTERN
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS
from wharf.contract.model.acl.permissions import READ_AGENT, READ_OPERATOR, PublicAccess
from wharf.contract.model.refusal import NO_LEADER_TEXT, Refusal, no_leader
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.times import DecisionContext, to_datetime
from wharf.contract.wire.credentials import read_token
from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind, ScopeSource
from wharf.world import World

MAX_TOKEN_CHARACTERS: Final = 16_384
"""Limits the work of verifying a token that an unauthenticated caller sends."""
MAX_CHARS_COMPILED_ON_LOOP: Final = 4_096
"""The total length of policies that are compiled on the event loop: up to 4 ms. Larger ones are compiled on a thread."""
MAX_CACHED_CALLERS: Final = 10_000
"""Limits the memory of cached callers."""


class IdentityVerifier(Protocol):
    """Verifies signed identities. `verify` returns the claims, or an `InvalidCredential` with the reason."""

    def verify(self, snapshot: Replica, text: str, moment: DecisionContext) -> PresentedCredential: ...


class RejectingVerifier:
    """An `IdentityVerifier` that rejects every identity, for servers that accept only token secrets."""

    def verify(self, _snapshot: Replica, _text: str, _moment: DecisionContext) -> PresentedCredential:
        return InvalidCredential("signed identities are not supported by this server")


class CallerAuthenticator:
    """Finds the caller of a request. While disabled, every caller is allowed everything and tokens are ignored."""

    def __init__(self, world: World, *, is_enabled: bool = False, verifier: IdentityVerifier | None = None) -> None:
        self._world = world
        self.is_enabled = is_enabled
        self._verifier = verifier or RejectingVerifier()
        self._cached_callers: dict[str, Caller] = {}
        """Callers by the digest of their token secret. Emptied when any token, policy or role changes."""
        self._cached_snapshot: Replica | None = None
        self._cache_version = (0, 0)

    def authenticate(self, snapshot: Replica, endpoint: Endpoint, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller that the request's token belongs to, with the rights that the snapshot stores.

        Returns `UNCHECKED_CALLER`, which may do everything, for public endpoints and while access control is off.
        Callers with a token secret are cached until a token, policy or role changes or the token expires. Raises
        `RightsNotCompiled` if the caller's policies must first be compiled with `compile_rights_off_loop`.
        """
        if not self.is_enabled or isinstance(endpoint.need, PublicAccess):
            return UNCHECKED_CALLER
        token = read_token(headers)
        if len(token) != UUID_CHARACTERS:
            return self._authenticate_uncached(snapshot, token)
        version = (snapshot.epoch, snapshot.get_last_change(ACL_TOKENS, ACL_POLICIES, ACL_ROLES))
        if snapshot is not self._cached_snapshot or version != self._cache_version:
            self._cached_callers, self._cached_snapshot, self._cache_version = {}, snapshot, version
        digest = hash_secret(token)
        cached_caller = self._cached_callers.get(digest)
        if cached_caller is None:
            caller = self._authenticate_uncached(snapshot, token)
            if caller.token is not None and not caller.is_refused and len(self._cached_callers) < MAX_CACHED_CALLERS:
                self._cached_callers[digest] = caller
            return caller
        stored_token = cached_caller.token
        if (
            stored_token is not None
            and stored_token.expiration_time is not None
            and stored_token.is_expired(to_datetime(self._world.now_ns()))
        ):
            return self._authenticate_uncached(snapshot, token)
        return cached_caller

    def may_see_store(self, snapshot: Replica, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the caller may know the addresses of the store: with the right to read agents or the operator.

        A caller whose policies are large and not compiled yet may not.
        """
        if not self.is_enabled:
            return True
        try:
            caller = self._authenticate_uncached(snapshot, read_token(headers))
        except RightsNotCompiled:
            return False
        return not caller.is_refused and any(map(caller.rights.satisfies, (READ_AGENT, READ_OPERATOR)))

    def explain_refusal(self, server: Server, refusal: Refusal, headers: Mapping[bytes, bytes]) -> Refusal:
        """Return a refusal for lack of a leader with the addresses of a lost store, if the caller may know them."""
        if refusal.text != NO_LEADER_TEXT or not self.may_see_store(server.replica, headers):
            return refusal
        return no_leader(server.reader.describe_outage(for_operators=True))

    def _authenticate_uncached(self, snapshot: Replica, token: str) -> Caller:
        """Return the caller of the token, read from the snapshot."""
        moment = DecisionContext(self._world.now_ns(), self._world.new_id)
        credential = self._parse_credential(snapshot, token, moment)
        return authenticate_caller(snapshot, credential, moment, max_compiled_chars=MAX_CHARS_COMPILED_ON_LOOP)

    def _parse_credential(self, snapshot: Replica, token: str, moment: DecisionContext) -> PresentedCredential:
        """Return what the token text is: nothing, the digest of a token secret, a signed identity, or invalid."""
        if not token:
            return None
        if len(token) > MAX_TOKEN_CHARACTERS:
            return InvalidCredential("the token is too long")
        if UUID_PATTERN.fullmatch(token):
            return TokenSecret(hash_secret(token))
        return self._verifier.verify(snapshot, token, moment)


class RequestAuthorizer:
    """Finds the caller of a request that is not a read, and checks whether the caller may use the endpoint."""

    def __init__(self, server: Server, authenticator: CallerAuthenticator) -> None:
        self._server = server
        self._authenticator = authenticator
        server.reader.hides_store = authenticator.is_enabled
        server.access.may_see_store = lambda headers: authenticator.may_see_store(server.replica, headers)

    async def add_caller(self, request: Request) -> Request:
        """Return the request with its caller. The caller may still lack access: use `check`.

        Writes first catch up with the log, so that a deleted token can write nothing. Other requests catch up only if
        they would be refused, because the token may have been created on another server just now.
        """
        endpoint = request.endpoint
        if not self._authenticator.is_enabled or isinstance(endpoint.need, PublicAccess):
            return request
        if endpoint.kind not in (EndpointKind.LOCAL, EndpointKind.READ):
            await self._catch_up(request)
        request_with_caller = await self._authenticate(request)
        try:
            self.check(request_with_caller)
        except Refusal:
            await self._catch_up(request)
            return await self._authenticate(request)
        return request_with_caller

    async def _catch_up(self, request: Request) -> None:
        """Catch up with the log. Raises `Refusal` if there is no leader, with the addresses of a lost store if the caller
        may know them.
        """
        try:
            await self._server.reader.catch_up()
        except Refusal as refusal:
            raise self._authenticator.explain_refusal(self._server, refusal, request.headers) from None

    def check(self, request: Request) -> None:
        """Raise a `Refusal` unless the request's caller may use the endpoint."""
        require_endpoint_access(
            request.caller, request.endpoint, namespace=request.namespace, path_values=request.path_values
        )

    async def add_checked_caller(self, request: Request) -> Request:
        """Return the request with its caller. Raises `Refusal` if the caller may not use the endpoint."""
        request = await self.add_caller(request)
        self.check(request)
        return request

    async def check_again(self, request: Request) -> None:
        """Raise a `Refusal` if the caller of an earlier request may no longer do what the request did.

        Checks the rights that the caller has now for the endpoint and for each permission that the handler required.
        Nothing is read from the log: this server receives changes of tokens and policies as they are written.
        """
        current = await self._authenticate(request)
        self.check(current)
        for use in request.used_permissions:
            require_rights(
                current.caller,
                use.permission,
                manner=request.endpoint.denial_detail,
                query_namespace=request.namespace,
                namespace=use.namespace,
                path=use.path,
                label=use.label,
            )

    async def _authenticate(self, request: Request) -> Request:
        """Return the request with the caller that its token names, read from the replica as it is now."""
        while True:
            try:
                caller = self._authenticator.authenticate(self._server.replica, request.endpoint, request.headers)
                return msgspec.structs.replace(request, caller=caller)
            except RightsNotCompiled as missing:
                await compile_rights_off_loop(self._server, missing)


async def compile_rights_off_loop(server: Server, missing: RightsNotCompiled) -> None:
    """Compile the rights of large policies off the event loop, and store them in the cache."""
    rights = await server.off_loop.run(partial(compile_rights, missing.texts), owner="access control")
    store_rights(missing.texts, rights)


def require_endpoint_access(
    caller: Caller, endpoint: Endpoint, *, namespace: str, path_values: Mapping[str, str]
) -> None:
    """Raise a `Refusal` unless the caller may use the endpoint, as far as the request itself shows.

    For endpoints whose permission depends on a record, this rejects only callers that have the permission nowhere; the
    handler checks again once it has read the record.
    """
    if caller is UNCHECKED_CALLER:
        return
    need = endpoint.need
    if endpoint.scope_source is ScopeSource.OBJECT:
        if not isinstance(need, PublicAccess) and (caller.is_refused or not caller.rights.satisfies_anywhere(need)):
            detail = describe_denial(caller, need, namespace=namespace, is_anywhere=True)
            raise build_denial(caller, endpoint.denial_detail, detail=detail)
        return
    label = path_values.get(endpoint.scope_path_parameter, "")
    require_rights(caller, need, manner=endpoint.denial_detail, namespace=namespace, path=label, label=label)
