"""The connection from the api process of a server to its brain, over the simulated network.

The product uses a Unix socket here. The brain replies with the product's own `RpcDispatcher`.
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
    """Return the app that serves the calls to a brain."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        request_body = (await receive())["body"]
        reply = await dispatcher.call(scope["path"].removeprefix("/"), request_body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": _encode(reply)})

    return app


class SimulatedRpcTransport:
    """Sends calls to the brain at one address."""

    def __init__(self, network: Network, source: Process, address: str) -> None:
        self._network = network
        self._source = source
        self._address = address

    async def call(self, name: str, body: bytes) -> RpcReply:
        """Call a method of the brain.

        Raises `Refusal` with `UNAVAILABLE` if the call was not sent, and with `OUTCOME_UNKNOWN` if the reply was lost.
        """
        try:
            async with asyncio.timeout(RPC_TIMEOUT_S):
                request = SimulatedRequest("POST", f"/{name}", (), body)
                reply = await self._network.exchange(self._source, self._address, request, can_repeat=False)
                return _decode(await reply.read_body())
        except RequestNotSent as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"cannot reach the brain: {error}") from error
        except (OutcomeLost, TimeoutError) as error:
            raise Refusal(RefusalCode.OUTCOME_UNKNOWN, f"the reply of the brain was lost: {error}") from error


def make_brain_address(http_address: str) -> str:
    return f"{http_address}/brain"
