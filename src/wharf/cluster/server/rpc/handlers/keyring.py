"""What is asked of the leader about the ring: rotations, one after the other, so that one key is active at any time."""

from typing import Final

from wharf.cluster.operations import keyring
from wharf.cluster.operations.keyring import KeyringWriteResult, KeyRotationRequest
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute

ROTATE_KEYRING: Final = RpcMethod("rotate-keyring", KeyRotationRequest, KeyringWriteResult)


class KeyringHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def rotate_keyring(self, asked: KeyRotationRequest) -> KeyringWriteResult:
        return await self._brain.execute(lambda snapshot, _moment: keyring.rotate_key(snapshot, asked))


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    return ((ROTATE_KEYRING, KeyringHandlers(brain).rotate_keyring),)
