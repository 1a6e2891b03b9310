"""What a server has for access control, beside the records: its keyring, its signatures, its bounds, its ways to providers.

Made with every server, so that handlers need not ask whether it is there; the wiring fills in what the configuration says.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.cluster.operations.keyring import KeyRotationRequest
from wharf.cluster.server.rpc.handlers.keyring import ROTATE_KEYRING
from wharf.cluster.server.rpc.leader import LeaderClient
from wharf.cluster.server.security.identities import IdentitySigner
from wharf.cluster.server.security.keyring import Keyring
from wharf.cluster.server.security.login_providers import LoginProviders, NoLoginProviders
from wharf.cluster.state import Replica
from wharf.contract.model.acl.tokens import DEFAULT_LIFETIME_LIMITS, LifetimeLimits
from wharf.world import World

ACL_DISABLED_TEXT: Final = "ACL support disabled"


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    is_enabled: bool = False
    lifetime_limits: LifetimeLimits = DEFAULT_LIFETIME_LIMITS
    issuer: str = ""
    """Named in identities; empty: nobody outside looks for our keys."""
    own_node_secret: str = ""
    """By this the node of our own agent is let in; empty: it has none."""
    authoritative_region: str = ""
    """The region whose tokens, policies and namespaces count everywhere; empty: our own."""


class AccessServices:
    def __init__(self, world: World) -> None:
        self.keyring = Keyring(world, None)
        self.settings = AccessSettings()
        self.identity_signer = IdentitySigner(self.keyring)
        self.providers: LoginProviders = NoLoginProviders()
        self.read_bootstrap_reset: Callable[[], str | None] = _no_reset
        """What the file says that allows a second bootstrap; None: there is no such file."""

    def apply_settings(self, settings: AccessSettings) -> None:
        self.settings = settings
        self.identity_signer = IdentitySigner(
            self.keyring, issuer=settings.issuer, own_node_secret=settings.own_node_secret
        )

    async def ensure_active_key(self, replica: Replica, leader: LeaderClient) -> None:
        """The first key of the ring is made when something is to be sealed for the first time."""
        if self.keyring.find_active_key(replica) is None:
            await leader.call(ROTATE_KEYRING, KeyRotationRequest(await self.keyring.make_key(), only_first=True))


def _no_reset() -> str | None:
    return None
