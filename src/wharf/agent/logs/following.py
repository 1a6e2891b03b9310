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

CONTROL_TIMEOUT_S: Final = 10.0
"""How long the agent may take to answer on its control socket."""
READ_CHUNK_BYTES: Final = 65_536
"""How much is read from the control socket at once."""


class AgentLogReader:
    """Reads the log lines of the agent with this data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def open_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        """Return the log lines of this level and above from all processes of the agent that are written from now on.

        Raises `Refusal` if the agent cannot be reached, also while the lines are read.
        """
        lines = self._follow_log(level, as_json=as_json)
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                await anext(lines)
        except TimeoutError as error:
            raise build_unavailable_refusal(error) from error
        except StopAsyncIteration:
            raise Refusal(RefusalCode.UNAVAILABLE, "the agent is stopping") from None
        return lines

    async def _follow_log(self, level: str, *, as_json: bool) -> AsyncGenerator[str, None]:
        """Yield an empty text once the agent sends its lines, and then the lines."""
        is_confirmed = False
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
                    if not is_confirmed:  # The first message is empty.
                        is_confirmed = True
                        yield ""
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
