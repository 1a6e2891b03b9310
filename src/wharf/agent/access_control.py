"""Access control as the configuration has it: what servers are told of it, and where its files are."""

import logging
from pathlib import Path
from typing import Final

from wharf.agent.folder import KEYRING_FILE
from wharf.agent.key_pairs import make_rsa
from wharf.agent.keyring_file import take_keyring
from wharf.agent.life import CannotStart, Life
from wharf.agent.providers import HttpProviders
from wharf.api.gate import Gate
from wharf.config.settings import Settings
from wharf.model.token import LifetimeBounds
from wharf.server.access import AccessSettings
from wharf.server.server import Server
from wharf.server.settings import SigningAlgorithm
from wharf.server.tending import TendingSettings

log = logging.getLogger(__name__)

RESET_FILE: Final = "acl-bootstrap-reset"
RESET_AT_MOST: Final = 100


def set_up_access(life: Life, server: Server) -> None:
    """What the configuration says. The keyring follows when the log was read (`open_keyring`)."""
    settings = life.order.settings
    bounds = LifetimeBounds(settings.acl.token_min_expiration_ttl.ns, settings.acl.token_max_expiration_ttl.ns)
    server.access.take(
        AccessSettings(
            enabled=settings.acl.enabled,
            bounds=bounds,
            issuer=settings.server.oidc_issuer,
            own_node_secret=life.order.own_node_secret,
            authoritative_region=settings.server.authoritative_region,
        )
    )
    server.access.providers = HttpProviders()
    if settings.keyring.signing_algorithm is SigningAlgorithm.RS256:
        server.access.keyring.make_rsa = make_rsa
    reset = Path(life.order.data_folder) / RESET_FILE
    server.access.read_reset = lambda: read_reset(reset)


def open_keyring(life: Life, server: Server) -> None:
    """And again at each reload, when the file may hold other keys. Raises CannotStart."""
    configured = life.order.settings.keyring.file
    file = Path(configured) if configured else Path(life.order.data_folder) / KEYRING_FILE
    take_keyring(server, file)

    def read_again(_settings: Settings) -> None:
        try:
            take_keyring(server, file)
        except CannotStart as error:
            log.error("the key of the keyring stays as it was read before", extra={"why": str(error)})

    life.on_reload(read_again)


def gate_of(life: Life, server: Server) -> Gate:
    return Gate(life.world, enabled=life.order.settings.acl.enabled, verifier=server.access.identities)


def tending_settings(settings: Settings) -> TendingSettings:
    server = settings.server
    return TendingSettings(
        begins_ring=True,
        look_every_s=min(server.root_key_gc_interval.s, server.job_gc_interval.s),
        rotation_threshold_ns=server.root_key_rotation_threshold.ns,
        key_threshold_ns=server.root_key_gc_threshold.ns,
        token_threshold_ns=server.acl_token_gc_threshold.ns,
    )


def read_reset(file: Path) -> str | None:
    """What the file says; None where there is none that can be read."""
    try:
        with open(file, encoding="ascii", errors="replace") as reading:
            return reading.read(RESET_AT_MOST)
    except OSError:
        return None
