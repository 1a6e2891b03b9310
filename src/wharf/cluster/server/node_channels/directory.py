"""Which process of which member holds the connection of which node: what the leader's brain knows of it, and who tells.

It is no record: whoever leads anew hears it anew from those who hold the connections.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

import msgspec

from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import LEADER
from wharf.contract.model.refusal import Refusal
from wharf.world import World

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")

RETRY_DELAY_S: Final = 1.0


class LeaderCaller(Protocol):
    async def call(self, subject: RpcMethod[RequestT, ReplyT], question: RequestT) -> ReplyT:
        """Raises Refusal."""
        ...


class ProcessAddress(msgspec.Struct, frozen=True):
    member_id: str
    process: str


class HeldNodesReport(msgspec.Struct, frozen=True):
    """What a process holds. `is_whole`: `held` is all of it, and what it said before counts no more."""

    place: ProcessAddress
    held: tuple[str, ...]
    let_go: tuple[str, ...] = ()
    is_whole: bool = False


class HeldNodesRecorded(msgspec.Struct, frozen=True):
    pass


class FindNodeRequest(msgspec.Struct, frozen=True):
    node_id: str


class FindNodeReply(msgspec.Struct, frozen=True):
    place: ProcessAddress | None


REPORT_HELD_NODES: Final = RpcMethod("holding-nodes", HeldNodesReport, HeldNodesRecorded)
FIND_NODE: Final = RpcMethod("where-is-node", FindNodeRequest, FindNodeReply)


class NodeDirectory:
    """In the leader's brain."""

    def __init__(self) -> None:
        self._places: dict[str, ProcessAddress] = {}

    async def update(self, told: HeldNodesReport) -> HeldNodesRecorded:
        if told.is_whole:
            self._let_go(told.place, [node for node, place in self._places.items() if place == told.place])
        self._let_go(told.place, told.let_go)
        self._places.update(dict.fromkeys(told.held, told.place))
        return HeldNodesRecorded()

    async def find_node(self, wanted: FindNodeRequest) -> FindNodeReply:
        return FindNodeReply(self._places.get(wanted.node_id))

    def _let_go(self, place: ProcessAddress, nodes: Iterable[str]) -> None:
        for node in nodes:
            # It may have connected elsewhere before this end was noticed here.
            if self._places.get(node) == place:
                del self._places[node]


def build_routes() -> tuple[RpcRoute, ...]:
    whereabouts = NodeDirectory()
    return ((REPORT_HELD_NODES, whereabouts.update), (FIND_NODE, whereabouts.find_node))


class HeldNodesReporter:
    """In a process that holds connections: tells the leader of them, and all of them whenever another leads."""

    def __init__(self, world: World, replica: Replica, leader: LeaderCaller, address: ProcessAddress) -> None:
        self._world = world
        self._replica = replica
        self._leader = leader
        self.address = address
        self._held: dict[str, None] = {}
        self._new: dict[str, bool] = {}  # Whether it is held, of those that the leader was not told.
        self._changed = asyncio.Event()

    def add_node(self, node_id: str) -> None:
        self._held[node_id] = None
        self._note(node_id, True)

    def remove_node(self, node_id: str) -> None:
        self._held.pop(node_id, None)
        self._note(node_id, False)

    def _note(self, node_id: str, is_held: bool) -> None:
        self._new[node_id] = is_held
        self._changed.set()

    async def run(self) -> None:
        told_to: object = None
        subscription = self._replica.watches.subscribe([watch.watch_key(LEADER)], self._changed.set)
        try:
            while True:
                self._changed.clear()
                subscription.rearm()
                leader = self._replica.get(LEADER)
                who = (leader.member_id, leader.modify_index) if leader is not None else None
                if who is None or (who == told_to and not self._new):
                    await self._changed.wait()
                elif await self._tell(is_whole=who != told_to):
                    told_to = who
                else:
                    await asyncio.sleep(RETRY_DELAY_S)
        finally:
            subscription.close()

    async def _tell(self, *, is_whole: bool) -> bool:
        news, self._new = self._new, {}
        held = self._held if is_whole else [node for node, is_held in news.items() if is_held]
        let_go = [node for node, is_held in news.items() if not is_held]
        try:
            await self._leader.call(
                REPORT_HELD_NODES, HeldNodesReport(self.address, tuple(held), tuple(let_go), is_whole)
            )
        except Refusal as refusal:
            # Nobody leads, or nobody knows whether it was heard. Said again it does no harm.
            log.debug("the leader could not be told of connections", extra={"why": str(refusal)})
            self._new = {**news, **self._new}
            return False
        return True
