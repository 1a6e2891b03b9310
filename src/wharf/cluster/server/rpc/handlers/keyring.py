"""RPC handlers for the keyring. Only the leader rotates keys, so that one key is active at any time."""

from typing import Final

from wharf.cluster.operations import keyring
from wharf.cluster.operations.keyring import KeyringWriteResult, KeyRotationRequest
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute

ROTATE_KEYRING: Final = RpcMethod("rotate-keyring", KeyRotationRequest, KeyringWriteResult)


class KeyringHandlers:
    """Handles the calls of other servers and processes that concern the keyring."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def rotate_keyring(self, request: KeyRotationRequest) -> KeyringWriteResult:
        """Store the new key of the request as the active one, as far as the request's options allow."""
        return await self._brain.execute(lambda snapshot, _context: keyring.rotate_key(snapshot, request))


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of the keyring with their handlers."""
    return ((ROTATE_KEYRING, KeyringHandlers(brain).rotate_keyring),)
