"""Saying no: the sentence for each kind of caller and each manner of endpoint (reference 5.1). The status is always 403."""

from typing import Final

from wharf.access.caller import Caller, CallerKind
from wharf.model.need import Manner, Need, Nothing
from wharf.model.refusal import Code, Refusal

PERMISSION_DENIED: Final = "Permission denied"
TOKEN_NOT_FOUND: Final = "ACL token not found"
TOKEN_EXPIRED: Final = "ACL token expired"


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
