"""Handles requests for the log of the agent that runs this node: its lines are streamed as they are written."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol

from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelReply, VerbHandler

TEXT_CONTENT_TYPE = "text/plain"
"""The content type of a stream of log lines."""


class AgentLog(Protocol):
    """Gives access to the log lines of the agent that runs the node."""

    async def open_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        """Return the log lines of all processes of the agent with at least this level that are written from now on."""
        ...


class AgentLogHandlers:
    """Handles requests for the log of the agent. The server has checked the level and the rights of the caller."""

    def __init__(self, agent_log: AgentLog) -> None:
        self._agent_log = agent_log

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handlers by verb of the node channel."""
        return {"agent.monitor": self._stream_lines}

    async def _stream_lines(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Stream new log lines, each with a line break, until the request is canceled."""
        level = {"warning": "warn", "err": "error"}.get(
            name := str(request.parameters.get("log_level", "")).lower() or "info", name
        )
        as_json = str(request.parameters.get("log_json", "")).lower() in ("1", "t", "true")
        lines = await self._agent_log.open_log(level, as_json=as_json)
        return ChannelReply(TEXT_CONTENT_TYPE, chunks=_encode_lines(lines))


async def _encode_lines(lines: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    """Yield the lines as bytes, each with a line break."""
    async with aclosing(lines):
        async for line in lines:
            yield f"{line}\n".encode()
