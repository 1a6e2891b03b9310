"""Makes RSA keys for the keyring: on a thread, since it takes a tenth of a second and the library lets others run meanwhile.

Asks providers of logins over HTTP: within bounds of time and size, and following nobody elsewhere.

Access control as the configuration has it: what servers are told of it, and where its files are.
"""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from wharf.agent.data_folder import KEYRING_FILE
from wharf.agent.errors import StartupError
from wharf.agent.keyring_file import load_keyring
from wharf.agent.process_context import ProcessContext
from wharf.cluster.api.access_control import CallerAuthenticator
from wharf.cluster.server.duties.secrets import SecretsSettings
from wharf.cluster.server.security.access_services import AccessSettings
from wharf.cluster.server.security.login_providers import ProviderReply, ProviderRequest, ProviderUnreachable
from wharf.cluster.server.server import Server
from wharf.cluster.server.settings import SigningAlgorithm
from wharf.config.settings import AgentSettings
from wharf.contract.model.acl.tokens import LifetimeLimits

if TYPE_CHECKING:
    import httpx2

RSA_KEY_BITS: Final = 2_048
RSA_EXPONENT: Final = 65_537


async def create_rsa_key() -> bytes:
    """A new key, as PKCS #8 without a password: whoever asks wraps it."""
    return await asyncio.to_thread(generate_rsa_key)


def generate_rsa_key() -> bytes:
    key = generate_private_key(RSA_EXPONENT, RSA_KEY_BITS)
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


PROVIDER_TIMEOUT_S: Final = 10.0
MAX_PROVIDER_REPLY_BYTES: Final = 1_000_000


class HttpIdentityProviders:
    """Implements the port. A connection serves one question: logins are rare, and authorities differ by method."""

    async def send(self, request: ProviderRequest) -> ProviderReply:
        import httpx2  # It is slow to load, and most servers have no provider.

        try:
            async with httpx2.AsyncClient(
                trust_env=False, verify=_believing(request.ca_pem), timeout=PROVIDER_TIMEOUT_S, follow_redirects=False
            ) as http:
                method = "GET" if request.form is None else "POST"
                data = dict(request.form) if request.form is not None else None
                async with http.stream(method, request.url, data=data, headers=dict(request.headers)) as reply:
                    return ProviderReply(reply.status_code, await _bounded(reply))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ProviderUnreachable(f"{request.url} does not answer: {error}".strip()) from error
        except ssl.SSLError as error:
            raise ProviderUnreachable(
                f"the certificates to check {request.url} with cannot be read: {error}"
            ) from error


def _believing(ca_pem: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata="\n".join(ca_pem)) if ca_pem else ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


async def _bounded(reply: "httpx2.Response") -> bytes:
    parts, size = [], 0
    async for part in reply.aiter_bytes():
        size += len(part)
        if size > MAX_PROVIDER_REPLY_BYTES:
            raise ProviderUnreachable(f"{reply.url} answers with more than {MAX_PROVIDER_REPLY_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


log = logging.getLogger(__name__)

ACL_RESET_FILE: Final = "acl-bootstrap-reset"
MAX_ACL_RESET_CHARS: Final = 100


def configure_access(life: ProcessContext, server: Server) -> None:
    """What the configuration says. The keyring follows when the log was read (`open_keyring`)."""
    settings = life.order.settings
    bounds = LifetimeLimits(settings.acl.token_min_expiration_ttl.ns, settings.acl.token_max_expiration_ttl.ns)
    server.access.apply_settings(
        AccessSettings(
            is_enabled=settings.acl.enabled,
            lifetime_limits=bounds,
            issuer=settings.server.oidc_issuer,
            own_node_secret=life.order.own_node_secret,
            authoritative_region=settings.server.authoritative_region,
        )
    )
    server.access.providers = HttpIdentityProviders()
    if settings.keyring.signing_algorithm is SigningAlgorithm.RS256:
        server.access.keyring.make_rsa_key = create_rsa_key
    reset = Path(life.order.data_folder) / ACL_RESET_FILE
    server.access.read_bootstrap_reset = lambda: read_acl_reset(reset)


def open_keyring(life: ProcessContext, server: Server) -> None:
    """And again at each reload, when the file may hold other keys. Raises StartupError."""
    configured = life.order.settings.keyring.file
    file = Path(configured) if configured else Path(life.order.data_folder) / KEYRING_FILE
    load_keyring(server, file)

    def read_again(_settings: AgentSettings) -> None:
        try:
            load_keyring(server, file)
        except StartupError as error:
            log.error("the key of the keyring stays as it was read before", extra={"why": str(error)})

    life.add_reload_handler(read_again)


def build_gate(life: ProcessContext, server: Server) -> CallerAuthenticator:
    return CallerAuthenticator(
        life.world, is_enabled=life.order.settings.acl.enabled, verifier=server.access.identity_signer
    )


def build_tending_settings(settings: AgentSettings) -> SecretsSettings:
    server = settings.server
    return SecretsSettings(
        should_create_first_key=True,
        check_interval_s=min(server.root_key_gc_interval.seconds, server.job_gc_interval.seconds),
        max_active_key_age_ns=server.root_key_rotation_threshold.ns,
        unused_key_retention_ns=server.root_key_gc_threshold.ns,
        expired_token_retention_ns=server.acl_token_gc_threshold.ns,
    )


def read_acl_reset(file: Path) -> str | None:
    """What the file says; None where there is none that can be read."""
    try:
        with open(file, encoding="ascii", errors="replace") as reading:
            return reading.read(MAX_ACL_RESET_CHARS)
    except OSError:
        return None
