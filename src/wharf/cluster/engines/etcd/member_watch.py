"""Watches whether each configured etcd member replies, so that operators learn of a lost one before the next is lost.

It only reports. `client` selects the members for requests, and does not wait for these checks.
"""

import asyncio
from typing import Final, Protocol

from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.contract.model.times import to_datetime
from wharf.world import World

CHECK_INTERVAL_S: Final = 10.0
"""How often each member is asked for its status. A lost member is reported within half a minute, and a process sends six short
requests a minute to each member."""
CHECK_TIMEOUT_S: Final = 2.0
"""How long a member may take for its status, which it sends without its disk or other members."""
REPORTED_FAILURES: Final = 2
"""A member is reported after this many failed checks in a row. A short restart or a lost packet is not reported."""
MIN_REDUNDANT_MEMBERS: Final = 3
"""With fewer members, etcd accepts no writes once one is lost: the outage itself is reported."""


class CheckedClient(Protocol):
    """The calls of the client that the watch uses."""

    async def check_member(self, position: int, *, timeout_s: float) -> str:
        """Return why the member at this position of the endpoints cannot serve requests; empty if it can."""
        ...


class _MemberState:
    """What is known about one member."""

    __slots__ = ("failures", "reason", "replied_at_ns")

    def __init__(self, replied_at_ns: int) -> None:
        self.replied_at_ns = replied_at_ns
        """When it was last known to reply; the start of the watch if it never replied."""
        self.failures = 0
        self.reason = ""


class MemberWatch:
    """Which members of one etcd do not reply, and since when."""

    def __init__(self, world: World, client: CheckedClient, settings: EtcdSettings) -> None:
        self._world = world
        self._client = client
        self._settings = settings
        self._states: list[_MemberState] = []

    async def run(self) -> None:
        """Check all members at an interval, until cancelled. Each check ends before the next one begins."""
        now_ns = self._world.now_ns()
        self._states = [_MemberState(now_ns) for _ in self._settings.endpoints]
        if len(self._states) < MIN_REDUNDANT_MEMBERS:
            return
        while True:
            await asyncio.gather(*(self._check(position) for position in range(len(self._states))))
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _check(self, position: int) -> None:
        """Ask a member for its status and record the result."""
        state = self._states[position]
        reason = await self._client.check_member(position, timeout_s=CHECK_TIMEOUT_S)
        if reason:
            state.failures += 1
        else:
            state.failures, state.replied_at_ns = 0, self._world.now_ns()
        state.reason = reason

    def describe_problem(self, *, names_addresses: bool) -> str:
        """Return which members do not reply, since when, and how many more may fail; empty if all reply."""
        lost = [
            (endpoint, state)
            for endpoint, state in zip(self._settings.endpoints, self._states, strict=False)
            if state.failures >= REPORTED_FAILURES
        ]
        if not lost:
            return ""
        count = len(self._states)
        if names_addresses:
            subject = "; ".join(
                f"the etcd member {endpoint} {state.reason} since {_format_second(state.replied_at_ns)}"
                for endpoint, state in lost
            )
        else:
            verb = "has" if len(lost) == 1 else "have"
            since = _format_second(min(state.replied_at_ns for _, state in lost))
            subject = f"{len(lost)} of {count} etcd members {verb} not been usable since {since}"
        return f"{subject}. {_describe_remedy(count, len(lost))}"


def _describe_remedy(count: int, lost: int) -> str:
    """Return what the loss of more members does. `count`: the configured ones, which may be a part of all."""
    spare = count - lost - (count // 2 + 1)
    remedy = "start it again, or replace it" if lost == 1 else "start them again, or replace them"
    if spare < 0:
        return remedy.capitalize()  # etcd works without them: the configuration does not name all of its members.
    loss = "one more loss" if spare == 0 else f"the loss of {spare + 1} more"
    return f"With {loss}, etcd accepts no writes: {remedy}"


def _format_second(time_ns: int) -> str:
    """Return the time without a fraction, as in the API."""
    return f"{to_datetime(time_ns):%Y-%m-%dT%H:%M:%SZ}"
