"""Pulses of an api process to its own brain, which show that nodes can reach the brain through this process.

They take the same way as heartbeats: the event loop of the api process, and the connection to the brain.
"""

import asyncio
import contextlib
from typing import Final

import msgspec

from wharf.cluster.controllers.reception import PULSE_INTERVAL_S
from wharf.cluster.server.rpc.handlers.nodes import RECORD_PULSE, Pulse
from wharf.cluster.server.rpc.method import RpcTransport
from wharf.contract.model.refusal import Refusal

PULSE_TIMEOUT_S: Final = 1.0
"""How long a pulse may wait for its reply. The next one follows soon enough to prevent an outage, perhaps to a restarted brain."""


async def send_pulses(process: str, brain: RpcTransport) -> None:
    """Send a pulse to the brain of this server every `PULSE_INTERVAL_S`, until cancelled. Failures are ignored."""
    body = msgspec.msgpack.encode(Pulse(process))
    while True:
        with contextlib.suppress(Refusal, TimeoutError):
            async with asyncio.timeout(PULSE_TIMEOUT_S):
                await brain.call(RECORD_PULSE.name, body)
        await asyncio.sleep(PULSE_INTERVAL_S)
