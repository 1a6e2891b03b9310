"""What is asked of the leader about the ring: rotations, one after the other, so that one key is active at any time."""

from typing import Final

from wharf.operations import keyring
from wharf.operations.keyring import KeyWritten, RotationRequest
from wharf.server.brain import Brain
from wharf.server.subject import AnsweredBy, Subject

ROTATE: Final = Subject("rotate-keyring", RotationRequest, KeyWritten)


class KeyringAnswers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def rotate(self, asked: RotationRequest) -> KeyWritten:
        return await self._brain.decide(lambda snapshot, _moment: keyring.rotate(snapshot, asked))


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    return ((ROTATE, KeyringAnswers(brain).rotate),)
