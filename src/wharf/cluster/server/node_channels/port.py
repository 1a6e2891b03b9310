"""The ways to nodes: what is asked of a node goes through the connection that the node itself keeps open.

A port: whoever serves asks here for the way to a node, and neither knows nor cares which process holds the connection.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Protocol

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode


class NodeCall(msgspec.Struct, frozen=True):
    """What is asked of a node. `about` names an allocation, where it is about one."""

    verb: str
    target_id: str = ""
    parameters: Mapping[str, str | bool | int] = msgspec.field(default_factory=dict)
    body: bytes = b""


class NodeReply(msgspec.Struct, frozen=True):
    """An encoded body, or its parts as they come."""

    content_type: str
    body: bytes = b""
    parts: AsyncIterator[bytes] | None = None


class NodeStream(Protocol):
    """A question that goes on."""

    @property
    def parts(self) -> AsyncGenerator[bytes, None]:
        """What is answered, as it comes. Close it when nobody listens any more."""
        ...

    async def send(self, data: bytes) -> None:
        """Raises Refusal when the node went away."""
        ...


class NodeChannel(Protocol):
    """The way to one node."""

    async def call(self, question: NodeCall) -> NodeReply:
        """Raises `Refusal` with what the node says no to, or that it went away meanwhile."""
        ...

    async def open_stream(self, question: NodeCall) -> NodeStream:
        """Raises `Refusal`."""
        ...


class NodeChannels(Protocol):
    def channel_to(self, node_id: str) -> NodeChannel:
        """Raises `no_path` where the node keeps no connection to this region's servers."""
        ...


class NoNodePath(Refusal):
    """Nobody here holds the node's connection."""


def build_no_node_path() -> NoNodePath:
    return NoNodePath(RefusalCode.NOT_FOUND, "No path to node")
