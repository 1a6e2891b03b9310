"""What the node says to its servers and hears from them: it registers, keeps its heart beating, follows its orders and
tells what became of them. Whatever is not answered is said again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from wharf.client import AsyncClient, Unreachable
from wharf.model.node import Node
from wharf.model.refusal import Code, Refusal
from wharf.node.agent.telling import Telling
from wharf.node.core.moment import SECOND_NS
from wharf.wire import shapes
from wharf.world import World

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
WAIT_S: Final = 60.0
HEARTBEAT_S: Final = 10.0
FETCHED_AT_ONCE: Final = 1_000
"""Each with its job; servers refuse more than ten times as many."""


class NodeIdentity(msgspec.Struct, frozen=True):
    """By what a node is known; kept, so that a restarted node is the same one."""

    id: str
    secret_id: str


class Work(Protocol):
    """What the node does about what it hears."""

    def seen_index(self, allocation_id: str) -> int | None:
        """The index of the orders that were taken; None where it is not known."""
        ...

    def known(self) -> list[str]: ...

    def knows(self, allocation_id: str) -> bool: ...

    def take(self, order: shapes.DesiredAllocation) -> None: ...

    def drop(self, allocation_id: str) -> None:
        """Servers know it no more."""
        ...

    def update_of(self, allocation_id: str) -> shapes.AllocationUpdate: ...

    async def until_kept(self) -> None:
        """Until what `update_of` has said outlives this process, and a power cut."""
        ...

    def on_end_told(self, allocation_id: str) -> None:
        """Servers know that it is over: little needs to be remembered of it."""
        ...

    def on_contact(self) -> None: ...

    def on_silence(self, since_s: float) -> None:
        """No server has answered since then."""
        ...


class ServerTalk:
    def __init__(
        self,
        world: World,
        client: AsyncClient,
        identity: NodeIdentity,
        work: Work,
        describe: Callable[[], Awaitable[Node]],
        *,
        name: str = "the node",
    ) -> None:
        """`name`: as it is called in the log, where more than one node may speak."""
        self._world = world
        self._name = name
        self._client = client
        self._identity = identity
        self._work = work
        self._describe = describe
        self._index = 0
        """Of the newest orders that were taken."""
        self._telling = Telling(world, work)
        self._followed_reports = -1
        """How many whole reports were begun when the newest orders were asked for."""
        self._has_news = asyncio.Event()
        self.has_told_all = asyncio.Event()
        self.has_told_all.set()
        self._heard_s = world.monotonic_s()
        self.is_registered = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        await self._register()
        parts = ((self._beat(), "heartbeat"), (self._follow(), "orders"), (self._tell(), "reports"))
        tasks = [self._world.start(work, name=f"{self._name} {part}") for work, part in parts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def changed(self, allocation_id: str) -> None:
        """There may be something to tell of it."""
        self._telling.change(allocation_id)
        self._has_news.set()
        self.has_told_all.clear()

    async def describe_again(self) -> None:
        """The node is not what it was."""
        await self._client.node_agents.register(await self._describe(), self._identity.secret_id)

    async def _begin(self) -> None:
        """Servers tell from where on reports are to be numbered: higher than all that was said before, in this life or not."""
        node = replace(await self._describe(), reports_from=1)
        reply = await self._client.node_agents.register(node, self._identity.secret_id)
        self._telling.begin(reply.reports_from)

    async def _register(self) -> None:
        said = ""
        while True:
            try:
                await self._begin()
                await self._heartbeat()
                self.is_registered.set()
                return
            except (Refusal, Unreachable) as error:
                if said != str(error):  # Tried once a second: who reads wants to know when the reason changes.
                    said = str(error)
                    log.warning("%s cannot register yet: %s", self._name, error)
                self._work.on_silence(self._heard_s)
            await asyncio.sleep(RETRY_S)

    async def _heartbeat(self) -> float:
        """Seconds until the next one is due."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                reply = await self._client.node_agents.heartbeat(self._identity.id, self._identity.secret_id)
        except TimeoutError:
            # Where the network loses what is said nothing else would tell how long nobody has answered.
            raise Unreachable(f"no server has answered within {HEARTBEAT_S:.0f} s", sent=True) from None
        self._heard_s = self._world.monotonic_s()
        self._work.on_contact()
        self._telling.go_on_from(reply.reports_from)
        if reply.must_report:
            self._telling.tell_all()
            self._has_news.set()
        return reply.heartbeat_ttl / SECOND_NS

    async def _beat(self) -> None:
        wait_s = RETRY_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                wait_s = await self._heartbeat()
            except (Refusal, Unreachable) as error:
                log.warning("a heartbeat of %s failed: %s", self._name, error)
                self._work.on_silence(self._heard_s)
                wait_s = RETRY_S
                if isinstance(error, Refusal) and error.code is Code.UNKNOWN:
                    # A state that does not know this node: what was followed until now says nothing about it.
                    self._index = 0
                    await self._register()

    async def _follow(self) -> None:
        while True:
            asked, reports = self._index, self._telling.whole_reports
            try:
                # What a whole report leaves out may be given up for good by it: orders from before it are not carried out.
                # So those after it are read of a server that is surely as new as who wanted the report.
                is_newer = self._followed_reports == reports
                answer = await self._client.node_agents.desired(
                    self._identity.id, self._identity.secret_id, index=asked, wait_s=WAIT_S, stale=is_newer
                )
                if reports != self._telling.whole_reports:
                    continue
                # Orders that are older than those taken come from a server that lags: they are not taken. Neither must
                # count as seen what could not be fetched: nothing would tell of it a second time.
                if answer.index >= self._index and await self._take(answer.value, reports):
                    self._followed_reports = reports
                    self._index = max(1, answer.index) if self._index == asked else 0
                    continue
            except (Refusal, Unreachable) as error:
                log.warning("%s cannot follow its orders: %s", self._name, error)
            await asyncio.sleep(RETRY_S)

    async def _take(self, desired: Mapping[str, int], reports: int) -> bool:
        """False where a server that lags did not know all of it yet, or where a whole report was begun meanwhile: then it
        must be asked for again."""
        for gone in [known for known in self._work.known() if known not in desired]:
            self._work.drop(gone)
            self._telling.forget(gone)
        news = [id for id, index in desired.items() if (self._work.seen_index(id) or 0) < index]
        for start in range(0, len(news), FETCHED_AT_ONCE):
            some = news[start : start + FETCHED_AT_ONCE]
            orders = await self._client.node_agents.fetch(self._identity.id, self._identity.secret_id, some)
            if reports != self._telling.whole_reports:
                return False
            for order in orders:
                # One that is older than it was said to be comes from a server that lags.
                if order.allocation.alloc_modify_index >= desired.get(order.allocation.id, 0):
                    self._work.take(order)
        return all((self._work.seen_index(id) or 0) >= desired[id] for id in news)

    async def _tell(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            try:
                while (report := self._telling.next()) is not None:
                    if any(update.client_status.is_terminal for update in report.allocations):
                        # An end that servers know and this node has forgotten when it comes back would run again.
                        await self._work.until_kept()
                    reply = await self._client.node_agents.report(self._identity.id, self._identity.secret_id, report)
                    self._telling.answered(must_tell_all=reply.must_report)
                if not self._has_news.is_set():
                    self.has_told_all.set()
            except (Refusal, Unreachable) as error:
                log.warning("a report of %s failed: %s", self._name, error)
                if isinstance(error, Refusal) and error.code in (Code.INVALID, Code.TOO_LARGE):
                    self._telling.refused(is_too_large=error.code is Code.TOO_LARGE)
                await asyncio.sleep(RETRY_S)
                if isinstance(error, Refusal) and error.code is Code.INVALID:
                    with contextlib.suppress(Refusal, Unreachable):  # Then it is refused again.
                        await self._begin()
                self._has_news.set()
