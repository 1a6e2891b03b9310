"""The port for requests to nodes. Callers need not know which process holds a node's connection."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Protocol

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason


class NodeCall(msgspec.Struct, frozen=True):
    """A request that a server sends to a node."""

    verb: str
    """What to do, such as `restart`."""
    target_id: str = ""
    """The id of the allocation or volume that the request concerns, if any."""
    parameters: Mapping[str, str | bool | int] = msgspec.field(default_factory=dict)
    body: bytes = b""


class NodeReply(msgspec.Struct, frozen=True):
    """The reply of a node: an encoded body, or its parts as they arrive."""

    content_type: str
    body: bytes = b""
    parts: AsyncIterator[bytes] | None = None


class NodeStream(Protocol):
    """A call to a node with an input stream and an output stream."""

    @property
    def parts(self) -> AsyncGenerator[bytes, None]:
        """Return the output as it arrives. Close it when it is no longer needed."""
        ...

    async def send(self, data: bytes) -> None:
        """Send input. Raises `Refusal` if the node disconnected."""
        ...


class NodeChannel(Protocol):
    """Sends calls to one node."""

    async def call(self, request: NodeCall) -> NodeReply:
        """Send the request and return the node's reply. Raises `Refusal` if the node refuses or disconnects."""
        ...

    async def open_stream(self, request: NodeCall) -> NodeStream:
        """Start a call with input and output streams. Raises `Refusal` if the node refuses or disconnects."""
        ...


class NodeChannels(Protocol):
    """Finds the channel of a node."""

    def channel_to(self, node_id: str) -> NodeChannel:
        """Return the channel. Raises `NoNodePath` if the node has no connection to this region's servers."""
        ...


class NoNodePath(Refusal):
    """No server process holds the node's connection."""


def build_no_node_path() -> NoNodePath:
    """Return the refusal for a node without a connection."""
    return NoNodePath(RefusalCode.NOT_FOUND, "No path to node", RefusalReason.NO_NODE_PATH)
