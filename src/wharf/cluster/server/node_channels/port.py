"""The port for requests to nodes. Callers need not know which process holds a node's connection."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Protocol

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason


class NodeCall(msgspec.Struct, frozen=True):
    """A request to a node. `target_id`: the allocation that it concerns, if any."""

    verb: str
    target_id: str = ""
    parameters: Mapping[str, str | bool | int] = msgspec.field(default_factory=dict)
    body: bytes = b""


class NodeReply(msgspec.Struct, frozen=True):
    """An encoded body, or its parts as they arrive."""

    content_type: str
    body: bytes = b""
    parts: AsyncIterator[bytes] | None = None


class NodeStream(Protocol):
    """A call with input and output streams."""

    @property
    def parts(self) -> AsyncGenerator[bytes, None]:
        """Return the output as it arrives. Close it when it is no longer needed."""
        ...

    async def send(self, data: bytes) -> None:
        """Send input. Raises `Refusal` if the node disconnected."""
        ...


class NodeChannel(Protocol):
    """Calls to one node."""

    async def call(self, request: NodeCall) -> NodeReply:
        """Call the node. Raises `Refusal` from the node, or if it disconnects during the call."""
        ...

    async def open_stream(self, request: NodeCall) -> NodeStream:
        """Start a call with streams. Raises `Refusal`."""
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
