"""The gate: who is calling, and whether an endpoint is open to them.

It knows tokens and endpoints and decides nothing about records. Whether a text is a signed identity is asked of a port,
so that keys and signatures stay out of here.
"""

from collections.abc import Mapping
from re import compile as pattern
from typing import Final, Protocol

from wharf.access import UNCHECKED, Caller, Presented, Secret, Unverified, denial, refuse_without, who_is
from wharf.model.moment import Moment, to_time
from wharf.model.need import Nothing
from wharf.model.secret import secret_digest
from wharf.state import Replica
from wharf.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS
from wharf.wire.endpoints import Decides, Endpoint
from wharf.world import World

SECRET_FORM: Final = pattern(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
SECRET_LENGTH: Final = 36
TOKEN_LENGTH_MAX: Final = 16_384
KNOWN_MAX: Final = 10_000


class Verifier(Protocol):
    """Checks signed identities. Claims that hold are given back, else the reason why they do not."""

    def verify(self, snapshot: Replica, text: str, moment: Moment) -> Presented: ...


class NoVerifier:
    """For a server that signs nothing: no text but a secret is known."""

    def verify(self, _snapshot: Replica, _text: str, _moment: Moment) -> Presented:
        return Unverified("identities are not checked here")


class Gate:
    """`enabled` false: everybody may do everything, and no token is looked at."""

    def __init__(self, world: World, *, enabled: bool = False, verifier: Verifier | None = None) -> None:
        self._world = world
        self.enabled = enabled
        self._verifier = verifier or NoVerifier()
        self._known: dict[str, Caller] = {}
        """Callers by the digests of their secrets, as long as no token, policy or role changes anywhere."""
        self._known_in: Replica | None = None
        self._stands_for = (0, 0)

    def caller(self, snapshot: Replica, endpoint: Endpoint, headers: Mapping[bytes, bytes]) -> Caller:
        """Who is calling, as things stand now. Asked again whenever a blocked request is woken."""
        if not self.enabled or isinstance(endpoint.need, Nothing):
            return UNCHECKED
        given = token_of(headers)
        if len(given) != SECRET_LENGTH:
            return self._found_out(snapshot, given)
        stands_for = (snapshot.epoch, snapshot.last_change(ACL_TOKENS, ACL_POLICIES, ACL_ROLES))
        if snapshot is not self._known_in or stands_for != self._stands_for:
            self._known, self._known_in, self._stands_for = {}, snapshot, stands_for
        digest = secret_digest(given)
        known = self._known.get(digest)
        if known is None:
            caller = self._found_out(snapshot, given)
            if caller.token is not None and not caller.is_refused and len(self._known) < KNOWN_MAX:
                self._known[digest] = caller
            return caller
        token = known.token
        if token is not None and token.expiration_time is not None and token.is_expired(to_time(self._world.now_ns())):
            return self._found_out(snapshot, given)
        return known

    def _found_out(self, snapshot: Replica, given: str) -> Caller:
        moment = Moment(self._world.now_ns(), self._world.new_id)
        return who_is(snapshot, self._presented(snapshot, given, moment), moment)

    def _presented(self, snapshot: Replica, given: str, moment: Moment) -> Presented:
        if not given:
            return None
        if len(given) > TOKEN_LENGTH_MAX:
            return Unverified("the token is too long")
        if SECRET_FORM.fullmatch(given):
            return Secret(secret_digest(given))
        return self._verifier.verify(snapshot, given, moment)


def token_of(headers: Mapping[bytes, bytes]) -> str:
    """The token of a request: our own header first, then a bearer's."""
    own = headers.get(b"x-cluster-token", b"").decode("latin-1").strip()
    if own:
        return own
    words = headers.get(b"authorization", b"").decode("latin-1").split()
    return words[1] if len(words) > 1 and words[0].lower() == "bearer" else ""


def check(caller: Caller, endpoint: Endpoint, *, namespace: str, path_values: Mapping[str, str]) -> None:
    """Raises unless the endpoint is open to the caller, as far as the request itself tells.

    Where the object decides, whoever has the right nowhere is refused at once; the handler asks again.
    """
    if caller is UNCHECKED:
        return
    need = endpoint.need
    if endpoint.decides is Decides.OBJECT:
        if not isinstance(need, Nothing) and (caller.is_refused or not caller.rights.meet_somewhere(need)):
            raise denial(caller, endpoint.manner)
        return
    label = path_values.get(endpoint.label, "")
    refuse_without(caller, need, manner=endpoint.manner, namespace=namespace, path=label, label=label)
