"""Configures access control of a server: settings, keyring file, RSA keys, and HTTP requests to identity providers.

The rules of access control are in `wharf.cluster.access` and `wharf.cluster.server.security`.
"""

import asyncio
import importlib
import logging
import ssl
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from wharf.agent.bootstrap_reset import BootstrapResetFile
from wharf.agent.data_folder import get_keyring_file
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
from wharf.world.tls_contexts import ClientTls, TooManyBuilds, load_client_context

RSA_KEY_BITS: Final = 2_048
RSA_EXPONENT: Final = 65_537


async def create_rsa_key() -> bytes:
    """Return a new RSA key as unencrypted PKCS #8. The caller encrypts it.

    The key is generated on a thread, because that takes about 0.1 s.
    """
    return await asyncio.to_thread(generate_rsa_key)


def generate_rsa_key() -> bytes:
    """Return a new RSA key as unencrypted PKCS #8. Blocks for about 0.1 s."""
    key = generate_private_key(RSA_EXPONENT, RSA_KEY_BITS)
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


PROVIDER_TIMEOUT_S: Final = 10.0
"""How long a login waits for each complete reply of the identity provider."""
MAX_PROVIDER_REPLY_BYTES: Final = 256 * 1024
"""Protects memory from an identity provider that sends an endless reply. To decode a reply of this size takes up to 6 ms."""


class HttpIdentityProviders:
    """Sends requests to identity providers over HTTP.

    Each request opens its own connection: logins are rare, and the trusted authorities differ by auth method. Their
    certificates are read once. Redirects are not followed.
    """

    async def send(self, request: ProviderRequest) -> ProviderReply:
        """Send the request and return the reply.

        Raises `ProviderUnreachable` if there is no complete reply in time, or if the provider's certificate is not
        trusted.
        """
        # Loads slowly, and most servers have no identity provider.
        await asyncio.to_thread(importlib.import_module, "wharf.world.http_clients")
        import httpx2

        from wharf.world.http_clients import build_async_client, read_body

        try:
            async with (
                asyncio.timeout(PROVIDER_TIMEOUT_S),
                build_async_client(
                    trust_env=False,
                    verify=await load_client_context(ClientTls(ca_pem=request.ca_pem)),
                    timeout=PROVIDER_TIMEOUT_S,
                ) as http,
            ):
                method = "GET" if request.form is None else "POST"
                data = dict(request.form) if request.form is not None else None
                async with http.stream(method, request.url, data=data, headers=dict(request.headers)) as reply:
                    body = await read_body(reply, timeout_s=PROVIDER_TIMEOUT_S, max_bytes=MAX_PROVIDER_REPLY_BYTES)
                    return ProviderReply(reply.status_code, body)
        except TimeoutError as error:
            raise ProviderUnreachable(
                f"{request.url} does not answer: no complete reply within {PROVIDER_TIMEOUT_S:g} s"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ProviderUnreachable(f"{request.url} does not answer: {error}".strip()) from error
        except (ssl.SSLError, ValueError, TooManyBuilds) as error:
            raise ProviderUnreachable(
                f"the certificates to check {request.url} with cannot be read: {error}"
            ) from error


log = logging.getLogger(__name__)


def configure_access(context: ProcessContext, server: Server) -> None:
    """Apply the access control settings to the server, and set how it reaches identity providers, creates RSA keys and
    reads the ACL reset file.

    The keyring is loaded later, by `open_keyring`, once the replica is loaded.
    """
    settings = context.order.settings
    lifetime_limits = LifetimeLimits(settings.acl.token_min_expiration_ttl.ns, settings.acl.token_max_expiration_ttl.ns)
    server.access.apply_settings(
        AccessSettings(
            is_enabled=settings.acl.enabled,
            lifetime_limits=lifetime_limits,
            issuer=settings.server.oidc_issuer,
            own_node_secret=context.order.own_node_secret,
            page_session_ttl_ns=settings.ui.session_ttl.ns,
            authoritative_region=settings.server.authoritative_region,
        )
    )
    server.access.providers = HttpIdentityProviders()
    if settings.keyring.signing_algorithm is SigningAlgorithm.RS256:
        server.access.keyring.make_rsa_key = create_rsa_key
    server.access.read_bootstrap_reset = BootstrapResetFile(Path(context.order.data_folder)).read


def open_keyring(context: ProcessContext, server: Server) -> None:
    """Load the wrapping keys now and again at each reload, because they may have changed.

    Raises `StartupError` if the first load fails. A failed reload only logs an error.
    """
    file = get_keyring_file(context.order.settings)
    load_keyring(server, file, context.order.settings.keyring.secret)

    def reload_keyring(settings: AgentSettings) -> None:
        """Load the wrapping keys again. If they cannot be used, log an error and keep the keys loaded before."""
        try:
            load_keyring(server, file, settings.keyring.secret)
        except StartupError as error:
            log.error("keyring file not reloaded; the keys loaded before stay in use", extra={"why": str(error)})

    context.add_reload_handler(reload_keyring)


def build_caller_authenticator(context: ProcessContext, server: Server) -> CallerAuthenticator:
    """Return the component that api processes use to find out which token or identity a request has."""
    return CallerAuthenticator(
        context.world, is_enabled=context.order.settings.acl.enabled, verifier=server.access.identity_signer
    )


def build_secrets_settings(settings: AgentSettings) -> SecretsSettings:
    """Return the settings of the duty that rotates keys and deletes old keys and expired tokens."""
    server = settings.server
    return SecretsSettings(
        should_create_first_key=True,
        check_interval_s=min(server.root_key_gc_interval.seconds, server.job_gc_interval.seconds),
        max_active_key_age_ns=server.root_key_rotation_threshold.ns,
        unused_key_retention_ns=server.root_key_gc_threshold.ns,
        expired_token_retention_ns=server.acl_token_gc_threshold.ns,
    )
