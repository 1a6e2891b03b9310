"""The services of a server for access control: keyring, signer, settings and login providers.

Every server has one. The wiring applies the configuration.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from wharf.cluster.operations.keyring import KeyRotationRequest
from wharf.cluster.server.rpc.handlers.keyring import ROTATE_KEYRING
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.security.identities import IdentitySigner
from wharf.cluster.server.security.keyring import Keyring
from wharf.cluster.server.security.login_providers import LoginProviders, NoLoginProviders
from wharf.cluster.state import Replica
from wharf.contract.model.acl.tokens import LifetimeLimits
from wharf.world import World

ACL_DISABLED_TEXT: Final = "ACL support disabled"


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Access control settings."""

    is_enabled: bool = False
    lifetime_limits: LifetimeLimits = LifetimeLimits()
    issuer: str = ""
    """The issuer claim of identities; empty if no other service needs to find the public keys."""
    own_node_secret: str = ""
    """With this secret the node of this server's own agent registers; empty if it has none."""
    page_session_ttl_ns: int = 0
    """How long a browser stays signed in at pages."""
    authoritative_region: str = ""
    """The region whose tokens, policies and namespaces apply everywhere; empty: this region."""

    def owns_global_records(self, region: str) -> bool:
        """Return whether servers of the region decide writes of global records, instead of the authoritative region."""
        return not self.is_enabled or self.authoritative_region in ("", region)


class FirstKeyMissing(Exception):
    """The request needs the first key of the keyring. A copy of the process cannot create it; the api process can."""


class AccessServices:
    """The services of a server for access control: keyring, signer of identities, settings and login providers."""

    def __init__(self, world: World) -> None:
        self.keyring = Keyring(world, None)
        self.settings = AccessSettings()
        self.identity_signer = IdentitySigner(self.keyring)
        self.providers: LoginProviders = NoLoginProviders()
        self.read_bootstrap_reset: Callable[[], str | None] = _read_no_reset
        """Returns the content of the file that allows a second ACL bootstrap; `None` if there is no such file."""
        self.may_see_store: Callable[[Mapping[bytes, bytes]], bool] = lambda _headers: True
        """Returns whether the caller with these headers may know the addresses of the store."""
        self.can_create_keys = True
        """False in a copy of the process: it cannot wait for a new key, and would not see it."""

    def apply_settings(self, settings: AccessSettings) -> None:
        """Replace the settings, and sign identities with them from now on."""
        self.settings = settings
        self.identity_signer = IdentitySigner(
            self.keyring, issuer=settings.issuer, own_node_secret=settings.own_node_secret
        )

    async def ensure_active_key(self, replica: Replica, leader: LeaderClient) -> None:
        """Have the leader create the first key of the keyring, if the replica shows no active key.

        Raises `Refusal`, and `FirstKeyMissing` in a copy of the process.
        """
        if self.keyring.find_active_key(replica) is None:
            if not self.can_create_keys:
                raise FirstKeyMissing
            await leader.call(ROTATE_KEYRING, KeyRotationRequest(await self.keyring.make_key(), only_first=True))


def _read_no_reset() -> str | None:
    return None
