"""The way from one process of a server to the brain beside it: what is a Unix socket in the product.

The brain answers as the product does (`server.asking.Answers`); only the carriage is played.
"""

import asyncio
from typing import Any, Final

import msgspec

from simulation.network import AsgiApp, Network, OutcomeLost, Receive, RequestNotSent, Send, SimulatedRequest
from simulation.process import Process
from wharf.cluster.server.rpc.dispatcher import RpcDispatcher
from wharf.cluster.server.rpc.method import RpcReply
from wharf.contract.model.refusal import Refusal, RefusalCode

RPC_TIMEOUT_S: Final = 10.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RpcReply).decode


def make_brain_app(dispatcher: RpcDispatcher) -> AsgiApp:
    """What listens at a brain."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        question = (await receive())["body"]
        answered = await dispatcher.call(scope["path"].removeprefix("/"), question)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": _encode(answered)})

    return app


class SimulatedRpcTransport:
    def __init__(self, network: Network, source: Process, address: str) -> None:
        self._network = network
        self._source = source
        self._address = address

    async def call(self, name: str, body: bytes) -> RpcReply:
        try:
            async with asyncio.timeout(RPC_TIMEOUT_S):
                request = SimulatedRequest("POST", f"/{name}", (), body)
                reply = await self._network.exchange(self._source, self._address, request, can_repeat=False)
                return _decode(await reply.read_body())
        except RequestNotSent as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"the brain cannot be reached: {error}") from error
        except (OutcomeLost, TimeoutError) as error:
            raise Refusal(RefusalCode.OUTCOME_UNKNOWN, f"the brain's answer was lost: {error}") from error


def make_brain_address(http_address: str) -> str:
    return f"{http_address}/brain"
