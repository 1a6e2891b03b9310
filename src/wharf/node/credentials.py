"""The credentials with which a node identifies itself to servers."""

import msgspec


class NodeCredentials(msgspec.Struct, frozen=True):
    """The id and the secret with which a node authenticates itself.

    They are stored on disk, so that a restarted node is the same node.
    """

    id: str
    secret_id: str
