"""Follows the log of the running agent over its control socket."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from wharf.agent.data_folder import CONTROL_SOCKET
from wharf.agent.logs.lines import get_level_number, render_line
from wharf.agent.supervision.channel import MessageDecoder
from wharf.agent.supervision.control import ControlLogRequest
from wharf.agent.supervision.log_followers import FollowedLogLines
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world.framing import encode_frame
from wharf.world.unix_sockets import shorten_socket_path

READ_CHUNK_BYTES: Final = 65_536
"""How much is read from the control socket at once."""


class AgentLogReader:
    """Reads the log lines of the agent with this data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def follow_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        """Yield log lines of this level and above from all processes of the agent, as they are written.

        Raises `Refusal` if the agent cannot be reached.
        """
        inbox: MessageDecoder[FollowedLogLines] = MessageDecoder(FollowedLogLines)
        try:
            with shorten_socket_path(self._folder / CONTROL_SOCKET) as name:
                reader, writer = await asyncio.open_unix_connection(name)
        except OSError as error:
            raise build_unavailable_refusal(error) from error
        try:
            writer.write(encode_frame(ControlLogRequest(get_level_number(level))))
            while data := await reader.read(READ_CHUNK_BYTES):
                for message in inbox.feed(data):
                    if message.missed:
                        yield f"({message.missed} lines were skipped: they were written faster than they were read)"
                    for line in message.lines:
                        yield line if as_json else render_line(line)
        except OSError as error:
            raise build_unavailable_refusal(error) from error
        finally:
            writer.close()


def build_unavailable_refusal(error: Exception) -> Refusal:
    """Return the refusal of a request for which the agent process must be reached."""
    return Refusal(RefusalCode.UNAVAILABLE, f"the agent does not answer: {error}")
