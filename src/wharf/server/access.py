"""What a server has for access control, beside the records: its keyring, its signatures, its bounds, its ways to providers.

Made with every server, so that handlers need not ask whether it is there; the wiring fills in what the configuration says.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.model.token import DEFAULT_LIFETIME_BOUNDS, LifetimeBounds
from wharf.operations.keyring import RotationRequest
from wharf.server.answering.keyring import ROTATE
from wharf.server.asking import Leader
from wharf.server.identities import Identities
from wharf.server.keyring import Keyring
from wharf.server.providers import NoProviders, Providers
from wharf.state import Replica
from wharf.world import World

DISABLED: Final = "ACL support disabled"


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = False
    bounds: LifetimeBounds = DEFAULT_LIFETIME_BOUNDS
    issuer: str = ""
    """Named in identities; empty: nobody outside looks for our keys."""
    own_node_secret: str = ""
    """By this the node of our own agent is let in; empty: it has none."""
    authoritative_region: str = ""
    """The region whose tokens, policies and namespaces count everywhere; empty: our own."""


class Access:
    def __init__(self, world: World) -> None:
        self.keyring = Keyring(world, None)
        self.settings = AccessSettings()
        self.identities = Identities(self.keyring)
        self.providers: Providers = NoProviders()
        self.read_reset: Callable[[], str | None] = _no_reset
        """What the file says that allows a second bootstrap; None: there is no such file."""

    def take(self, settings: AccessSettings) -> None:
        self.settings = settings
        self.identities = Identities(self.keyring, issuer=settings.issuer, own_node_secret=settings.own_node_secret)

    async def begin_ring(self, replica: Replica, leader: Leader) -> None:
        """The first key of the ring is made when something is to be sealed for the first time."""
        if self.keyring.active_key(replica) is None:
            await leader.ask(ROTATE, RotationRequest(await self.keyring.make_key(), only_first=True))


def _no_reset() -> str | None:
    return None
