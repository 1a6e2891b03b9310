"""What a brain says of its server, leading or not; and the leader's word that another is to lead."""

from typing import Final

import msgspec

from wharf.model.autopilot import ServerStanding
from wharf.server.brain import Brain, BrainFigures
from wharf.server.process_figures import ProcessFigures, measure_process
from wharf.server.subject import AnsweredBy, Subject


class Nothing(msgspec.Struct, frozen=True):
    """A question that needs no words."""


class HandOver(msgspec.Struct, frozen=True):
    heir: str


class Told(msgspec.Struct, frozen=True):
    brain: BrainFigures
    process: ProcessFigures


STANDING: Final = Subject("server-standing", Nothing, ServerStanding)
FIGURES: Final = Subject("server-figures", Nothing, Told)
HAND_OVER: Final = Subject("hand-over", HandOver, Nothing)


class Servers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def standing(self, _question: Nothing) -> ServerStanding:
        return await self._brain.standing()

    async def figures(self, _question: Nothing) -> Told:
        return Told(self._brain.figures(), measure_process())

    async def hand_over(self, wanted: HandOver) -> Nothing:
        await self._brain.hand_over(wanted.heir)
        return Nothing()


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    servers = Servers(brain)
    return ((STANDING, servers.standing), (FIGURES, servers.figures), (HAND_OVER, servers.hand_over))
