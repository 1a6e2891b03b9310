"""Saying no: the sentence for each kind of caller and each manner of endpoint (reference 5.1). The status is always 403."""

import enum
from typing import Final

from wharf.access.caller import Caller, CallerKind
from wharf.model.need import Need, Nothing
from wharf.model.refusal import Code, Refusal

PERMISSION_DENIED: Final = "Permission denied"
TOKEN_NOT_FOUND: Final = "ACL token not found"
TOKEN_EXPIRED: Final = "ACL token expired"


class Manner(enum.Enum):
    """How much an endpoint says of a token that does not hold. Clients know the texts."""

    CURT = "curt"  # Nearly all: one answer for every reason.
    TOKEN = "token"  # Reading one's own token or one by accessor.
    AGENT = "agent"  # Agent self, host, reload, and parsing of jobs.
    AGENT_SHORT = "agent-short"  # Agent schedulers, force-leave, keyring.


def denial(caller: Caller, manner: Manner = Manner.CURT) -> Refusal:
    """Why this caller does not get what it asked for."""
    return Refusal(Code.FORBIDDEN, _text(caller, manner))


def refuse_without(caller: Caller, need: Need, *, manner: Manner = Manner.CURT, **about: str) -> None:
    """Raises unless the caller has what is needed. `about` is told to `Rights.meet`."""
    if isinstance(need, Nothing):
        return
    if caller.is_refused or not caller.rights.meet(need, **about):
        raise denial(caller, manner)


def _text(caller: Caller, manner: Manner) -> str:
    match caller.kind:
        case CallerKind.EXPIRED:
            reason = TOKEN_EXPIRED
        case CallerKind.UNVERIFIED:
            reason = caller.reason
        case _:
            return PERMISSION_DENIED
    match manner:
        case Manner.CURT:
            return PERMISSION_DENIED
        case Manner.AGENT:
            return f"{TOKEN_NOT_FOUND} or invalid workload identity: {reason}"
        case Manner.TOKEN | Manner.AGENT_SHORT:
            return reason
