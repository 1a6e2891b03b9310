"""ACL bootstrap: create the first management token.

Bootstrap needs no permission and works once. Repeating it requires write access to the server's data folder (the reset
file).
"""

import re
from typing import Final

from wharf.cluster.operations.acl.tokens import TokenWriteResult, add_token_secret, make_token_reply
from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_BOOTSTRAP, ACL_TOKENS, KEYRING, TOKENS_BY_SECRET
from wharf.contract.model.acl.tokens import AclBootstrap, Token, TokenType
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.secrets import NewSecret
from wharf.contract.model.times import DecisionContext, to_datetime

BOOTSTRAP_TOKEN_NAME: Final = "Bootstrap Token"
_UUID: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def check_bootstrap_secret(secret_id: str) -> None:
    """Raise unless the secret, which the caller chose for the first token, has the format of a UUID."""
    if _UUID.fullmatch(secret_id) is None:
        raise invalid_request("invalid acl token")


def bootstrap_acl(
    snapshot: Replica, accessor_id: str, secret: NewSecret, context: DecisionContext, *, reset_text: str | None = None
) -> Decision[TokenWriteResult]:
    """Return the decision that creates the first management token.

    `reset_text` is the content of the reset file in the server's data folder, or `None` if there is no such file. A
    repeated bootstrap is refused unless this text is the log index of the last bootstrap.
    """
    last_bootstrap = snapshot.get(ACL_BOOTSTRAP)
    if last_bootstrap is not None:
        _check_reset(last_bootstrap, reset_text)
    if snapshot.list_by_index(TOKENS_BY_SECRET, secret.digest):
        raise invalid_request("invalid acl token")
    token = Token(
        accessor_id=accessor_id,
        name=BOOTSTRAP_TOKEN_NAME,
        type=TokenType.MANAGEMENT,
        global_=True,
        create_time=to_datetime(context.now_ns),
        create_index=WRITE_INDEX,
    )
    token = add_token_secret(token, secret)
    record = AclBootstrap(
        accessor_id=accessor_id, create_index=WRITE_INDEX if last_bootstrap is None else last_bootstrap.create_index
    )
    write = Write(
        "acl-bootstrapped",
        Cause(CauseKind.REQUEST),
        [ACL_BOOTSTRAP.build_put(record), ACL_TOKENS.build_put(token)],
        [
            snapshot.build_key_condition(ACL_BOOTSTRAP),
            snapshot.build_key_condition(ACL_TOKENS, accessor_id),
            snapshot.build_key_condition(KEYRING, secret.sealed.key_id),
        ],
    )
    return Decision(write, make_token_reply(token))


def _check_reset(last_bootstrap: AclBootstrap, reset_text: str | None) -> None:
    """Raise unless the text of the reset file is the log index of the last bootstrap.

    `None`: the file does not exist.
    """
    index = last_bootstrap.modify_index
    if reset_text is None:
        raise invalid_request(f"ACL bootstrap already done (reset index: {index})")
    requested_index = reset_text.strip()
    if (
        not (requested_index.isascii() and requested_index.isdigit() and len(requested_index) < 20)
        or int(requested_index) != index
    ):
        raise invalid_request(
            f"Invalid bootstrap reset index (specified {requested_index or 'nothing'}, reset index: {index})"
        )
