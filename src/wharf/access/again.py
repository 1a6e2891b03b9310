"""The caller of a request that goes on for long, looked at again: rights may have gone since it came."""

from wharf.access.caller import Caller, CallerKind
from wharf.access.identification import who_is, whose_token
from wharf.model.moment import Moment
from wharf.state import Replica


def who_is_it_now(snapshot: Replica, caller: Caller, moment: Moment) -> Caller:
    """The same caller with the rights of this moment."""
    if caller.kind is CallerKind.UNCHECKED:
        return caller
    if caller.token is not None:
        return whose_token(snapshot, caller.token.accessor_id, moment)
    if caller.claims is not None:
        return who_is(snapshot, caller.claims, moment)
    return who_is(snapshot, None, moment)
