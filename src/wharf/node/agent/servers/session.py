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

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.nodes import messages
from wharf.node.agent.servers.reports import ReportQueue
from wharf.node.core.clock import SECOND_NS
from wharf.world import World

log = logging.getLogger(__name__)

RETRY_DELAY_S: Final = 1.0
ASSIGNMENT_POLL_S: Final = 60.0
HEARTBEAT_TIMEOUT_S: Final = 10.0
MAX_ASSIGNMENTS_PER_FETCH: Final = 1_000
"""Each with its job; servers refuse more than ten times as many."""


class NodeCredentials(msgspec.Struct, frozen=True):
    """By what a node is known; kept, so that a restarted node is the same one."""

    id: str
    secret_id: str


class AssignmentHandler(Protocol):
    """What the node does about what it hears."""

    def find_assignment_index(self, allocation_id: str) -> int | None:
        """The index of the orders that were taken; None where it is not known."""
        ...

    def list_allocations(self) -> list[str]: ...

    def has_allocation(self, allocation_id: str) -> bool: ...

    def apply_assignment(self, order: messages.Assignment) -> None: ...

    def drop_allocation(self, allocation_id: str) -> None:
        """Servers know it no more."""
        ...

    def build_update(self, allocation_id: str) -> messages.AllocationUpdate: ...

    async def wait_until_stored(self) -> None:
        """Until what `update_of` has said outlives this process, and a power cut."""
        ...

    def on_end_acknowledged(self, allocation_id: str) -> None:
        """Servers know that it is over: little needs to be remembered of it."""
        ...

    def on_server_contact(self) -> None: ...

    def on_server_silence(self, since_s: float) -> None:
        """No server has answered since then."""
        ...


class ServerSession:
    def __init__(
        self,
        world: World,
        client: AsyncClient,
        identity: NodeCredentials,
        assignment_handler: AssignmentHandler,
        build_node: Callable[[], Awaitable[Node]],
        *,
        log_name: str = "the node",
    ) -> None:
        """`name`: as it is called in the log, where more than one node may speak."""
        self._world = world
        self._name = log_name
        self._client = client
        self._identity = identity
        self._work = assignment_handler
        self._describe = build_node
        self._index = 0
        """Of the newest orders that were taken."""
        self._telling = ReportQueue(world, assignment_handler)
        self._followed_reports = -1
        """How many whole reports were begun when the newest orders were asked for."""
        self._has_news = asyncio.Event()
        self.has_reported_all = asyncio.Event()
        self.has_reported_all.set()
        self._heard_s = world.monotonic_s()
        self.is_registered = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        await self._register()
        parts = ((self._beat(), "heartbeat"), (self._follow(), "orders"), (self._tell(), "reports"))
        tasks = [self._world.start_task(work, name=f"{self._name} {part}") for work, part in parts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def mark_changed(self, allocation_id: str) -> None:
        """There may be something to tell of it."""
        self._telling.mark_changed(allocation_id)
        self._has_news.set()
        self.has_reported_all.clear()

    async def register_again(self) -> None:
        """The node is not what it was."""
        await self._client.node_agents.register(await self._describe(), self._identity.secret_id)

    async def _begin(self) -> None:
        """Servers tell from where on reports are to be numbered: higher than all that was said before, in this life or not."""
        node = replace(await self._describe(), reports_from=1)
        reply = await self._client.node_agents.register(node, self._identity.secret_id)
        self._telling.start_numbering(reply.reports_from)

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
                self._work.on_server_silence(self._heard_s)
            await asyncio.sleep(RETRY_DELAY_S)

    async def _heartbeat(self) -> float:
        """Seconds until the next one is due."""
        try:
            async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
                reply = await self._client.node_agents.send_heartbeat(self._identity.id, self._identity.secret_id)
        except TimeoutError:
            # Where the network loses what is said nothing else would tell how long nobody has answered.
            raise Unreachable(f"no server has answered within {HEARTBEAT_TIMEOUT_S:.0f} s", is_sent=True) from None
        self._heard_s = self._world.monotonic_s()
        self._work.on_server_contact()
        self._telling.skip_to_number(reply.reports_from)
        if reply.must_report:
            self._telling.request_full_report()
            self._has_news.set()
        return reply.heartbeat_ttl / SECOND_NS

    async def _beat(self) -> None:
        wait_s = RETRY_DELAY_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                wait_s = await self._heartbeat()
            except (Refusal, Unreachable) as error:
                log.warning("a heartbeat of %s failed: %s", self._name, error)
                self._work.on_server_silence(self._heard_s)
                wait_s = RETRY_DELAY_S
                if isinstance(error, Refusal) and error.code is RefusalCode.NOT_FOUND:
                    # A state that does not know this node: what was followed until now says nothing about it.
                    self._index = 0
                    await self._register()

    async def _follow(self) -> None:
        while True:
            asked, reports = self._index, self._telling.full_report_count
            try:
                # What a whole report leaves out may be given up for good by it: orders from before it are not carried out.
                # So those after it are read of a server that is surely as new as who wanted the report.
                is_newer = self._followed_reports == reports
                answer = await self._client.node_agents.list_assignments(
                    self._identity.id, self._identity.secret_id, index=asked, wait_s=ASSIGNMENT_POLL_S, stale=is_newer
                )
                if reports != self._telling.full_report_count:
                    continue
                # Orders that are older than those taken come from a server that lags: they are not taken. Neither must
                # count as seen what could not be fetched: nothing would tell of it a second time.
                if answer.index >= self._index and await self._take(answer.value, reports):
                    self._followed_reports = reports
                    self._index = max(1, answer.index) if self._index == asked else 0
                    continue
            except (Refusal, Unreachable) as error:
                log.warning("%s cannot follow its orders: %s", self._name, error)
            await asyncio.sleep(RETRY_DELAY_S)

    async def _take(self, desired: Mapping[str, int], reports: int) -> bool:
        """False where a server that lags did not know all of it yet, or where a whole report was begun meanwhile: then it
        must be asked for again."""
        for gone in [known for known in self._work.list_allocations() if known not in desired]:
            self._work.drop_allocation(gone)
            self._telling.forget_allocation(gone)
        news = [id for id, index in desired.items() if (self._work.find_assignment_index(id) or 0) < index]
        for start in range(0, len(news), MAX_ASSIGNMENTS_PER_FETCH):
            some = news[start : start + MAX_ASSIGNMENTS_PER_FETCH]
            orders = await self._client.node_agents.fetch_assignments(self._identity.id, self._identity.secret_id, some)
            if reports != self._telling.full_report_count:
                return False
            for order in orders:
                # One that is older than it was said to be comes from a server that lags.
                if order.allocation.alloc_modify_index >= desired.get(order.allocation.id, 0):
                    self._work.apply_assignment(order)
        return all((self._work.find_assignment_index(id) or 0) >= desired[id] for id in news)

    async def _tell(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            try:
                while (report := self._telling.next_report()) is not None:
                    if any(update.client_status.is_terminal for update in report.allocations):
                        # An end that servers know and this node has forgotten when it comes back would run again.
                        await self._work.wait_until_stored()
                    reply = await self._client.node_agents.send_report(
                        self._identity.id, self._identity.secret_id, report
                    )
                    self._telling.on_accepted(should_send_full_report=reply.must_report)
                if not self._has_news.is_set():
                    self.has_reported_all.set()
            except (Refusal, Unreachable) as error:
                log.warning("a report of %s failed: %s", self._name, error)
                if isinstance(error, Refusal) and error.code in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                    self._telling.on_rejected(is_too_large=error.code is RefusalCode.TOO_LARGE)
                await asyncio.sleep(RETRY_DELAY_S)
                if isinstance(error, Refusal) and error.code is RefusalCode.INVALID:
                    with contextlib.suppress(Refusal, Unreachable):  # Then it is refused again.
                        await self._begin()
                self._has_news.set()
