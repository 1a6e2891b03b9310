"""The way from one process of a server to the brain beside it: what is a Unix socket in the product.

The brain answers as the product does (`server.asking.Answers`); only the carriage is played.
"""

import asyncio
from typing import Any, Final

import msgspec

from simulation.network import AsgiApp, Lost, Network, NotSent, Receive, Request, Send
from simulation.process import Process
from wharf.model.refusal import Code, Refusal
from wharf.server.asking import Answered, Answers

PATIENCE_S: Final = 10.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Answered).decode


def brain_app(answers: Answers) -> AsgiApp:
    """What listens at a brain."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        question = (await receive())["body"]
        answered = await answers.ask(scope["path"].removeprefix("/"), question)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": _encode(answered)})

    return app


class SimulatedLink:
    def __init__(self, network: Network, source: Process, address: str) -> None:
        self._network = network
        self._source = source
        self._address = address

    async def ask(self, name: str, body: bytes) -> Answered:
        try:
            async with asyncio.timeout(PATIENCE_S):
                request = Request("POST", f"/{name}", (), body)
                reply = await self._network.exchange(self._source, self._address, request, may_repeat=False)
                return _decode(await reply.body())
        except NotSent as error:
            raise Refusal(Code.UNAVAILABLE, f"the brain cannot be reached: {error}") from error
        except (Lost, TimeoutError) as error:
            raise Refusal(Code.UNDECIDED, f"the brain's answer was lost: {error}") from error


def brain_address(http_address: str) -> str:
    return f"{http_address}/brain"
