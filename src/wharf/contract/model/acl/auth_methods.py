"""Auth methods: how a user proven by an identity provider gets a token. Binding rules decide what the token may do.

The secrets of a method are encrypted and stored separately; its configuration holds `redacted` in their place.
"""

import datetime
import enum

import msgspec

from wharf.contract.model.acl.tokens import DEFAULT_LIFETIME_LIMITS, LifetimeLimits
from wharf.contract.model.names import is_valid_name
from wharf.contract.model.record import Record
from wharf.contract.model.times import format_duration

REDACTED_TEXT = "redacted"


class AuthMethodType(enum.StrEnum):
    """How users of an auth method prove who they are."""

    OIDC = "OIDC"
    JWT = "JWT"


class TokenLocality(enum.StrEnum):
    """Whether the tokens of an auth method are valid in their own region or in all regions."""

    LOCAL = "local"
    GLOBAL = "global"


DEFAULT_TOKEN_NAME_FORMAT = "${auth_method_type}-${auth_method_name}"


class ClientAssertionKey(Record):
    """The private key that signs an assertion, or the file that holds it on the server."""

    pem_key: str = ""
    pem_key_file: str = ""
    key_id: str = ""
    pem_cert: str = ""
    pem_cert_file: str = ""
    key_id_header: str = ""


class ClientAssertion(Record):
    """Authentication of the OIDC client by a signed JWT instead of a client secret."""

    key_source: str = ""
    audience: tuple[str, ...] | None = None
    key_algorithm: str = ""
    private_key: ClientAssertionKey | None = None
    extra_headers: dict[str, str] | None = None


class AuthMethodConfigBase(Record):
    """How a method authenticates users, without its leeways: these are stored as ns and shown as text."""

    oidc_discovery_url: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: str = ""
    oidc_client_assertion: ClientAssertion | None = None
    oidc_enable_pkce: bool | None = msgspec.field(name="OIDCEnablePKCE", default=None)
    oidc_disable_user_info: bool = False
    oidc_scopes: tuple[str, ...] | None = None
    bound_audiences: tuple[str, ...] | None = None
    bound_issuer: tuple[str, ...] | None = None
    allowed_redirect_uris: tuple[str, ...] | None = msgspec.field(name="AllowedRedirectURIs", default=None)
    discovery_ca_pem: tuple[str, ...] | None = None
    jwks_url: str = ""
    jwks_ca_cert: str = msgspec.field(name="JWKSCACert", default="")
    jwt_validation_pub_keys: tuple[str, ...] | None = None
    signing_algs: tuple[str, ...] | None = None
    claim_mappings: dict[str, str] | None = None
    list_claim_mappings: dict[str, str] | None = None
    verbose_logging: bool = False


class AuthMethodConfig(AuthMethodConfigBase):
    """How a method authenticates users, as it is stored."""

    expiration_leeway: int = 0  # ns; these three are text like "1m0s" on the wire.
    not_before_leeway: int = 0
    clock_skew_leeway: int = 0


class AuthMethod(Record):
    """A way to log in with an identity provider (OIDC) or a signed token (JWT)."""

    name: str
    type: str = ""
    token_locality: str = ""
    token_name_format: str = DEFAULT_TOKEN_NAME_FORMAT
    max_token_ttl: int = 0  # ns; on the wire text like "1h0m0s".
    default: bool = False
    config: AuthMethodConfig | None = None
    secrets_sealed: bytes = b""  # The redacted values of the configuration, encrypted; never in a reply.
    sealed_with: str = ""
    secrets_stamp: bytes = b""  # Changes with the secrets. Part of the hash, so that other regions notice the change.
    hash: bytes = b""
    create_time: datetime.datetime | None = None
    modify_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0


def list_auth_method_problems(method: AuthMethod, *, limits: LifetimeLimits = DEFAULT_LIFETIME_LIMITS) -> list[str]:
    """Return everything that is wrong with a submitted auth method."""
    found = []
    if not is_valid_name(method.name):
        found.append(f"invalid name '{method.name}'")
    if method.type not in list(AuthMethodType):
        found.append(f"invalid type '{method.type}': must be OIDC or JWT")
    if method.token_locality not in list(TokenLocality):
        found.append(f"invalid token locality '{method.token_locality}': must be local or global")
    if not limits.min_ns <= method.max_token_ttl <= limits.max_ns:
        found.append(
            f"invalid MaxTokenTTL value '{format_duration(method.max_token_ttl)}': must be between "
            f"{format_duration(limits.min_ns)} and {format_duration(limits.max_ns)}"
        )
    if method.config is None:
        return [*found, "config is missing"]
    match method.type:
        case AuthMethodType.OIDC:
            found += _list_oidc_problems(method.config)
        case AuthMethodType.JWT:
            found += _list_jwt_problems(method.config)
    return found


def _list_oidc_problems(config: AuthMethodConfig) -> list[str]:
    """Return the fields that an OIDC method lacks."""
    required_fields = {
        "OIDCDiscoveryURL": config.oidc_discovery_url,
        "OIDCClientID": config.oidc_client_id,
        "AllowedRedirectURIs": config.allowed_redirect_uris,
    }
    found = [f"config: {name} is missing" for name, value in required_fields.items() if not value]
    if not config.oidc_client_secret and config.oidc_client_assertion is None:
        found.append("config: OIDCClientSecret or OIDCClientAssertion is missing")
    return found


def _list_jwt_problems(config: AuthMethodConfig) -> list[str]:
    sources = [config.jwks_url, config.jwt_validation_pub_keys, config.oidc_discovery_url]
    if sum(1 for source in sources if source) != 1:
        return ["config: exactly one of JWKSURL, JWTValidationPubKeys and OIDCDiscoveryURL must be set"]
    return []
