"""Pulses of an api process, which show the leader that heartbeats of nodes are received there, and how late.

The process sends them to the brain of its own server and to the leader. A pulse vouches for all heartbeats that arrived at
the process up to some time: its progress. To find it, the process opens a connection to itself. When that request is
answered, everything that arrived before it has been read, and only has to be passed on.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wharf.cluster.controllers.reception import PULSE_INTERVAL_S
from wharf.cluster.server.rpc.handlers.nodes import RECORD_PULSE, Pulse
from wharf.cluster.server.rpc.heartbeats import HeartbeatForwarder
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.rpc.method import RpcTransport
from wharf.contract.model.refusal import Refusal
from wharf.world import World
from wharf.world.tasks import cancel_tasks

PULSE_TIMEOUT_S: Final = 2.5
"""How long a pulse may wait for its reply. The next one follows soon enough to prevent an outage, perhaps to a restarted brain."""
PROBE_TIMEOUT_S: Final = 60.0
"""How long a request to the own process may take before another one is sent. Meanwhile, pulses report the growing delay."""

_encode = msgspec.msgpack.Encoder().encode


class PulseSender:
    """Sends the pulses of one api process."""

    def __init__(
        self,
        world: World,
        process: str,
        *,
        member_id: str,
        own_brain: RpcTransport,
        leader: LeaderClient,
        heartbeats: HeartbeatForwarder,
        probe: Callable[[], Awaitable[None]],
    ) -> None:
        """`probe` sends a request to this process in the way of a heartbeat. It raises `OSError` if that fails."""
        self._world = world
        self._process = process
        self._member_id = member_id
        self._own_brain = own_brain
        self._leader = leader
        self._heartbeats = heartbeats
        self._probe = probe
        self._progress_s = world.monotonic_s()
        """All heartbeats that arrived here until this time have been passed on."""
        self._round_trip_s: dict[str, float] = {}
        """How long the newest pulse to each server took. The next one is late by as much when it arrives."""

    async def announce(self) -> None:
        """Send a first pulse to the own brain. Call it before heartbeats can arrive here.

        The brain then expects pulses of this process. Otherwise it would not miss a process that stops right after its start.
        """
        await self._send_pulse("")

    async def run(self) -> None:
        """Send pulses until cancelled. Failures are ignored."""
        probing = self._world.start_task(self._probe_own_process(), name="probe")
        try:
            while True:
                # A fast probe is reported by the pulse that follows it. A slow one does not delay pulses.
                await asyncio.wait([probing], timeout=PULSE_INTERVAL_S)
                if probing.done():
                    await probing
                    await self._send_pulses()
                    await asyncio.sleep(PULSE_INTERVAL_S)
                    probing = self._world.start_task(self._probe_own_process(), name="probe")
                else:
                    await self._send_pulses()
        finally:
            await cancel_tasks(probing)

    async def _probe_own_process(self) -> None:
        """Find out how far this process is: wait until everything that arrived before now has been passed on."""
        began_s = self._world.monotonic_s()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._probe()
                if await self._heartbeats.flush():
                    self._progress_s = began_s

    async def _send_pulses(self) -> None:
        """Send a pulse to the brain of this server, and one to the leader if that is another server."""
        leader_id = self._leader.get_leader_id()
        pulses = [self._send_pulse("")]
        if leader_id not in ("", self._member_id):
            pulses.append(self._send_pulse(leader_id))
        await asyncio.gather(*pulses)

    async def _send_pulse(self, receiver_id: str) -> None:
        """Send a pulse to another server, or to the own one if `receiver_id` is empty."""
        sent_s = self._world.monotonic_s()
        delay_s = sent_s - self._progress_s + self._round_trip_s.get(receiver_id, 0.0)
        with contextlib.suppress(Refusal, TimeoutError):
            async with asyncio.timeout(PULSE_TIMEOUT_S):
                if receiver_id:
                    pulse = Pulse(self._process, delay_s, self._member_id)
                    await self._leader.call_member(receiver_id, RECORD_PULSE, pulse)
                else:
                    await self._own_brain.call(RECORD_PULSE.name, _encode(Pulse(self._process, delay_s)))
        self._round_trip_s[receiver_id] = self._world.monotonic_s() - sent_s
