"""The first token: made once, without any right, and again only by whoever can write in the server's data folder."""

import re
from typing import Final

from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.content import content_hash
from wharf.model.moment import Moment, to_time
from wharf.model.refusal import invalid
from wharf.model.secret import NewSecret
from wharf.model.token import Bootstrap, Token, TokenType
from wharf.operations.decision import Decision
from wharf.operations.tokens import TokenWritten, with_secret, written
from wharf.state import Replica
from wharf.state.tables import ACL_BOOTSTRAP, ACL_TOKENS, KEYRING, TOKENS_BY_SECRET

NAME: Final = "Bootstrap Token"
_UUID: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def check_bootstrap_secret(given: str) -> None:
    """A secret that the caller brings along must have the form of one."""
    if _UUID.fullmatch(given) is None:
        raise invalid("invalid acl token")


def bootstrap(
    snapshot: Replica, accessor_id: str, secret: NewSecret, moment: Moment, *, reset: str | None = None
) -> Decision[TokenWritten]:
    """`reset`: what the file says that allows a second time; None where there is no such file."""
    done = snapshot.get(ACL_BOOTSTRAP)
    if done is not None:
        _check_reset(done, reset)
    if snapshot.those(TOKENS_BY_SECRET, secret.digest):
        raise invalid("invalid acl token")
    token = Token(
        accessor_id=accessor_id,
        name=NAME,
        type=TokenType.MANAGEMENT,
        global_=True,
        create_time=to_time(moment.now_ns),
        create_index=THIS,
    )
    token = with_secret(token, secret, hash_=content_hash(token))
    record = Bootstrap(accessor_id=accessor_id, create_index=THIS if done is None else done.create_index)
    write = Write(
        "acl-bootstrapped",
        Cause(CauseKind.REQUEST),
        [ACL_BOOTSTRAP.put(record), ACL_TOKENS.put(token)],
        [
            snapshot.as_seen(ACL_BOOTSTRAP),
            snapshot.as_seen(ACL_TOKENS, accessor_id),
            snapshot.as_seen(KEYRING, secret.sealed.key_id),
        ],
    )
    return Decision(write, written(token))


def _check_reset(done: Bootstrap, reset: str | None) -> None:
    index = done.modify_index
    if reset is None:
        raise invalid(f"ACL bootstrap already done (reset index: {index})")
    given = reset.strip()
    if not (given.isascii() and given.isdigit() and len(given) < 20) or int(given) != index:
        raise invalid(f"Invalid bootstrap reset index (specified {given or 'nothing'}, reset index: {index})")
