"""What people ask of the leader about nodes: drain, evaluate, purge."""

from typing import Final

import msgspec

from wharf.model.moment import Moment
from wharf.operations import drains, nodes
from wharf.operations.decision import Decision
from wharf.operations.drains import DrainWish
from wharf.operations.node_writes import NodeWritten
from wharf.server.brain import Brain
from wharf.server.subject import AnsweredBy, Subject
from wharf.state import Replica


class AboutNode(msgspec.Struct, frozen=True):
    node_id: str
    cause: str = ""


DRAIN_NODE: Final = Subject("drain-node", DrainWish, NodeWritten)
EVALUATE_NODE: Final = Subject("evaluate-node", AboutNode, NodeWritten)
PURGE_NODE: Final = Subject("purge-node", AboutNode, NodeWritten)


class Nodes:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def drain(self, wish: DrainWish) -> NodeWritten:
        most = self._brain.evaluations_max
        return await self._brain.decide(
            lambda snapshot, moment: drains.drain(snapshot, wish, moment, evaluations_max=most)
        )

    async def evaluate(self, asked: AboutNode) -> NodeWritten:
        """In as many writes as it takes: each job is looked at by itself."""
        ids: tuple[str, ...] = ()
        done: dict[tuple[str, str], None] = {}

        def look(snapshot: Replica, moment: Moment) -> Decision[nodes.NodeEvaluated]:
            most = self._brain.evaluations_max
            return nodes.evaluate(snapshot, asked.node_id, moment, done=done, evaluations_max=most, cause=asked.cause)

        while True:
            part = await self._brain.decide(look)
            ids += part.eval_ids
            done |= dict.fromkeys(part.jobs)
            if part.is_all:
                return NodeWritten(part.index, ids)

    async def purge(self, asked: AboutNode) -> NodeWritten:
        most = self._brain.evaluations_max
        return await self._brain.decide(
            lambda snapshot, moment: nodes.purge(
                snapshot, asked.node_id, moment, evaluations_max=most, cause=asked.cause
            )
        )


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    about = Nodes(brain)
    return ((DRAIN_NODE, about.drain), (EVALUATE_NODE, about.evaluate), (PURGE_NODE, about.purge))
