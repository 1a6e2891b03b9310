"""The gate: who is calling, and whether an endpoint is open to them.

It knows tokens and endpoints and decides nothing about records. Whether a text is a signed identity is asked of a port,
so that keys and signatures stay out of here.
"""

from collections.abc import Mapping
from re import compile as pattern
from typing import Final, Protocol

from wharf.cluster.access import (
    UNCHECKED_CALLER,
    Caller,
    InvalidCredential,
    PresentedCredential,
    TokenSecret,
    authenticate_caller,
    build_denial,
    require_rights,
)
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS
from wharf.contract.model.acl.permissions import PublicAccess
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.times import DecisionContext, to_datetime
from wharf.contract.wire.endpoint_table import Endpoint, ScopeSource
from wharf.world import World

TOKEN_SECRET_PATTERN: Final = pattern(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
TOKEN_SECRET_CHARACTERS: Final = 36
MAX_TOKEN_CHARACTERS: Final = 16_384
MAX_CACHED_CALLERS: Final = 10_000


class IdentityVerifier(Protocol):
    """Checks signed identities. Claims that hold are given back, else the reason why they do not."""

    def verify(self, snapshot: Replica, text: str, moment: DecisionContext) -> PresentedCredential: ...


class RejectingVerifier:
    """For a server that signs nothing: no text but a secret is known."""

    def verify(self, _snapshot: Replica, _text: str, _moment: DecisionContext) -> PresentedCredential:
        return InvalidCredential("identities are not checked here")


class CallerAuthenticator:
    """`enabled` false: everybody may do everything, and no token is looked at."""

    def __init__(self, world: World, *, is_enabled: bool = False, verifier: IdentityVerifier | None = None) -> None:
        self._world = world
        self.is_enabled = is_enabled
        self._verifier = verifier or RejectingVerifier()
        self._known: dict[str, Caller] = {}
        """Callers by the digests of their secrets, as long as no token, policy or role changes anywhere."""
        self._known_in: Replica | None = None
        self._stands_for = (0, 0)

    def authenticate(self, snapshot: Replica, endpoint: Endpoint, headers: Mapping[bytes, bytes]) -> Caller:
        """Who is calling, as things stand now. Asked again whenever a blocked request is woken."""
        if not self.is_enabled or isinstance(endpoint.need, PublicAccess):
            return UNCHECKED_CALLER
        given = get_request_token(headers)
        if len(given) != TOKEN_SECRET_CHARACTERS:
            return self._found_out(snapshot, given)
        stands_for = (snapshot.epoch, snapshot.get_last_change(ACL_TOKENS, ACL_POLICIES, ACL_ROLES))
        if snapshot is not self._known_in or stands_for != self._stands_for:
            self._known, self._known_in, self._stands_for = {}, snapshot, stands_for
        digest = hash_secret(given)
        known = self._known.get(digest)
        if known is None:
            caller = self._found_out(snapshot, given)
            if caller.token is not None and not caller.is_refused and len(self._known) < MAX_CACHED_CALLERS:
                self._known[digest] = caller
            return caller
        token = known.token
        if (
            token is not None
            and token.expiration_time is not None
            and token.is_expired(to_datetime(self._world.now_ns()))
        ):
            return self._found_out(snapshot, given)
        return known

    def _found_out(self, snapshot: Replica, given: str) -> Caller:
        moment = DecisionContext(self._world.now_ns(), self._world.new_id)
        return authenticate_caller(snapshot, self._presented(snapshot, given, moment), moment)

    def _presented(self, snapshot: Replica, given: str, moment: DecisionContext) -> PresentedCredential:
        if not given:
            return None
        if len(given) > MAX_TOKEN_CHARACTERS:
            return InvalidCredential("the token is too long")
        if TOKEN_SECRET_PATTERN.fullmatch(given):
            return TokenSecret(hash_secret(given))
        return self._verifier.verify(snapshot, given, moment)


def get_request_token(headers: Mapping[bytes, bytes]) -> str:
    """The token of a request: our own header first, then a bearer's."""
    own = headers.get(b"x-cluster-token", b"").decode("latin-1").strip()
    if own:
        return own
    words = headers.get(b"authorization", b"").decode("latin-1").split()
    return words[1] if len(words) > 1 and words[0].lower() == "bearer" else ""


def require_endpoint_access(
    caller: Caller, endpoint: Endpoint, *, namespace: str, path_values: Mapping[str, str]
) -> None:
    """Raises unless the endpoint is open to the caller, as far as the request itself tells.

    Where the object decides, whoever has the right nowhere is refused at once; the handler asks again.
    """
    if caller is UNCHECKED_CALLER:
        return
    need = endpoint.need
    if endpoint.scope_source is ScopeSource.OBJECT:
        if not isinstance(need, PublicAccess) and (caller.is_refused or not caller.rights.satisfies_anywhere(need)):
            raise build_denial(caller, endpoint.denial_detail)
        return
    label = path_values.get(endpoint.scope_path_parameter, "")
    require_rights(caller, need, manner=endpoint.denial_detail, namespace=namespace, path=label, label=label)
