"""Which process of which member holds the connection to a node: the leader's directory and the reports to it.

The directory is in memory only. A new leader gets a complete report from every process that holds connections.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.rpc.method import EmptyMessage, RpcMethod, RpcRoute
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import LEADER
from wharf.contract.model.refusal import Refusal
from wharf.world import World
from wharf.world.backoff import Backoff

log = logging.getLogger(__name__)

MIN_RETRY_DELAY_S: Final = 1.0
"""The longest delay after a first failed report; it doubles with each further failure."""
MAX_RETRY_DELAY_S: Final = 4.0
"""The longest delay before a report is sent again. Until then, calls for this process's nodes may fail."""


class ProcessAddress(msgspec.Struct, frozen=True):
    """Names one process of one member."""

    member_id: str
    process: str


class HeldNodesReport(msgspec.Struct, frozen=True):
    """A report of a process to the leader about its connections to nodes."""

    place: ProcessAddress
    held: tuple[str, ...]
    """Ids of nodes with a connection."""
    let_go: tuple[str, ...] = ()
    """Ids of nodes whose connection was closed."""
    is_whole: bool = False
    """Whether `held` is complete and replaces earlier reports of the process."""


class FindNodeRequest(msgspec.Struct, frozen=True):
    """A request for the process that holds the connection to a node."""

    node_id: str


class FindNodeReply(msgspec.Struct, frozen=True):
    """The process that holds the connection to a node; `None` if none is known."""

    place: ProcessAddress | None


REPORT_HELD_NODES: Final = RpcMethod("holding-nodes", HeldNodesReport, EmptyMessage, is_repeatable=True)
FIND_NODE: Final = RpcMethod("where-is-node", FindNodeRequest, FindNodeReply, is_repeatable=True)


class NodeDirectory:
    """The leader's map from node id to the process that holds the connection to the node."""

    def __init__(self) -> None:
        self._addresses: dict[str, ProcessAddress] = {}

    async def update(self, report: HeldNodesReport) -> EmptyMessage:
        """Apply the report of a process about its connections."""
        if report.is_whole:
            self._remove_nodes(report.place, [node for node, place in self._addresses.items() if place == report.place])
        self._remove_nodes(report.place, report.let_go)
        self._addresses.update(dict.fromkeys(report.held, report.place))
        return EmptyMessage()

    async def find_node(self, request: FindNodeRequest) -> FindNodeReply:
        """Return which process holds the connection to a node, as far as reports show."""
        return FindNodeReply(self._addresses.get(request.node_id))

    def _remove_nodes(self, place: ProcessAddress, nodes: Iterable[str]) -> None:
        """Remove nodes from the map, unless a process other than `place` holds them now."""
        for node in nodes:
            # The node may have connected to another process before the old connection ended.
            if self._addresses.get(node) == place:
                del self._addresses[node]


def build_routes() -> tuple[RpcRoute, ...]:
    """Return the RPC methods of the directory with their handlers."""
    directory = NodeDirectory()
    return ((REPORT_HELD_NODES, directory.update), (FIND_NODE, directory.find_node))


class HeldNodesReporter:
    """Reports this process's connections to nodes to the leader: changes at once, and all of them to a new leader."""

    def __init__(self, world: World, replica: Replica, leader: LeaderClient, address: ProcessAddress) -> None:
        self._world = world
        self._replica = replica
        self._leader = leader
        self.address = address
        self._held: dict[str, None] = {}
        self._unreported: dict[str, bool] = {}  # Changes that the leader does not know: whether the node is held.
        self._changed = asyncio.Event()

    def add_node(self, node_id: str) -> None:
        """Record that this process has a connection to the node, and report it soon."""
        self._held[node_id] = None
        self._record_change(node_id, True)

    def remove_node(self, node_id: str) -> None:
        """Record that the connection to the node was closed, and report it soon."""
        self._held.pop(node_id, None)
        self._record_change(node_id, False)

    def _record_change(self, node_id: str, is_held: bool) -> None:
        """Queue a change for the next report."""
        self._unreported[node_id] = is_held
        self._changed.set()

    async def run(self) -> None:
        """Send reports until cancelled: each change, and everything when the leader changes.

        Failed reports are repeated.
        """
        reported_leader: object = None
        backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        subscription = self._replica.watches.subscribe([watch.watch_key(LEADER)], self._changed.set)
        try:
            while True:
                self._changed.clear()
                subscription.rearm()
                leader = self._replica.get(LEADER)
                current_leader = (leader.member_id, leader.modify_index) if leader is not None else None
                if current_leader is None or (current_leader == reported_leader and not self._unreported):
                    await self._changed.wait()
                elif await self._report(is_whole=current_leader != reported_leader):
                    reported_leader = current_leader
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next_delay_s())
        finally:
            subscription.close()

    async def _report(self, *, is_whole: bool) -> bool:
        """Send the queued changes or, with `is_whole`, all connections. Return whether it succeeded.

        If not, the changes stay queued.
        """
        changes, self._unreported = self._unreported, {}
        held = self._held if is_whole else [node for node, is_held in changes.items() if is_held]
        let_go = [node for node, is_held in changes.items() if not is_held]
        try:
            await self._leader.call(
                REPORT_HELD_NODES, HeldNodesReport(self.address, tuple(held), tuple(let_go), is_whole)
            )
        except Refusal as refusal:
            # There is no leader, or the outcome is unknown. A repeated report is harmless.
            log.debug("report of node connections failed reason=%s", refusal)
            self._unreported = {**changes, **self._unreported}
            return False
        return True
