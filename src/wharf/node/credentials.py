"""The credentials with which a node identifies itself to servers."""

import msgspec


class NodeCredentials(msgspec.Struct, frozen=True):
    """The id and the secret of a node. They are stored, so that a restarted node is the same node."""

    id: str
    secret_id: str
