"""Auth methods: how a user proven by an identity provider gets a token. Binding rules decide what the token may do.

The secrets of a method are encrypted and stored separately; its configuration holds `redacted` in their place.
"""

import datetime
import enum
from typing import Final

import msgspec

from wharf.contract.model.acl.tokens import LifetimeLimits
from wharf.contract.model.names import NAME_RULE_TEXT, is_valid_name
from wharf.contract.model.record import Record
from wharf.contract.model.times import format_duration

SIGNING_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
)  # fmt: skip
"""The algorithms that may sign the tokens of identity providers. Those with a shared secret, and `none`, may not: the keys of
an auth method are public."""
PAGE_CALLBACK_PATHS: Final = ("/ui/sign-in/callback", "/ui/settings/tokens")
"""The pages to which identity providers send browsers back. The second is that of Nomad, so that auth methods and providers that
were set up for Nomad need no change."""
LOGIN_REJECTED_PREFIX: Final = "unable to validate provided token: "
"""Begins the refusal of a login that its identity provider or a check rejects; the reason follows."""
REDACTED_TEXT = "redacted"
"""What the stored configuration of an auth method holds in place of each secret."""


class AuthMethodType(enum.StrEnum):
    """How users of an auth method prove who they are."""

    OIDC = "OIDC"  # The user logs in at an identity provider (OpenID Connect).
    JWT = "JWT"  # The user presents a signed JSON Web Token.


class TokenLocality(enum.StrEnum):
    """Whether the tokens of an auth method are valid in their own region or in all regions."""

    LOCAL = "local"  # Valid only in the region that created the token.
    GLOBAL = "global"  # Valid in all regions.


DEFAULT_TOKEN_NAME_FORMAT = "${auth_method_type}-${auth_method_name}"
"""The name of a token that a login creates. The variables are replaced by those of the auth method."""


class ClientAssertionKey(Record):
    """The private key with which a server signs client assertions, given as text or as a file of the server."""

    pem_key: str = ""  # The key in PEM format; an alternative to `pem_key_file`.
    pem_key_file: str = ""  # A path on the server.
    key_id: str = ""  # Sent in the header of the assertion, so that the provider finds the public key.
    pem_cert: str = ""  # The certificate of the key in PEM format.
    pem_cert_file: str = ""
    key_id_header: str = ""  # The header field that holds `key_id`; empty: `kid`.


class ClientAssertion(Record):
    """Settings of the signed JWT that proves the OIDC client to the identity provider, instead of a client secret."""

    key_source: str = ""  # Accepted without effect: `private_key` always signs.
    audience: tuple[str, ...] | None = None  # The `aud` claim of the assertion; empty: the issuer of the provider.
    key_algorithm: str = ""  # Empty: "RS256".
    private_key: ClientAssertionKey | None = None
    extra_headers: dict[str, str] | None = None  # Added to the header of the assertion.


class AuthMethodConfigBase(Record):
    """How a method authenticates users: the fields that the stored and the wire form have in common.

    The leeways are missing, because they are stored in ns and shown as text.
    """

    oidc_discovery_url: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: str = ""
    oidc_client_assertion: ClientAssertion | None = None
    oidc_enable_pkce: bool | None = msgspec.field(name="OIDCEnablePKCE", default=None)  # Null: not set.
    oidc_disable_user_info: bool = False  # Do not fetch further claims from the provider.
    oidc_scopes: tuple[str, ...] | None = None
    bound_audiences: tuple[str, ...] | None = None  # Allowed values of the `aud` claim.
    bound_issuer: tuple[str, ...] | None = None  # Allowed values of the `iss` claim.
    allowed_redirect_uris: tuple[str, ...] | None = msgspec.field(name="AllowedRedirectURIs", default=None)
    discovery_ca_pem: tuple[str, ...] | None = None  # CA certificates for `oidc_discovery_url`.
    jwks_url: str = ""
    jwks_ca_cert: str = msgspec.field(name="JWKSCACert", default="")  # CA certificate for `jwks_url`.
    jwt_validation_pub_keys: tuple[str, ...] | None = None  # Public keys in PEM format.
    signing_algs: tuple[str, ...] | None = None  # Allowed signature algorithms.
    claim_mappings: dict[str, str] | None = None  # Claim name -> name in binding rules.
    list_claim_mappings: dict[str, str] | None = None  # The same for claims that are lists.
    verbose_logging: bool = False  # Log the claims of each login.


class AuthMethodConfig(AuthMethodConfigBase):
    """How a method authenticates users, in its stored form."""

    expiration_leeway: int = 0  # ns; how far clocks may differ when `exp` is checked.
    not_before_leeway: int = 0  # ns; the same for `nbf`.
    clock_skew_leeway: int = 0  # ns; the same for all time claims.


class AuthMethod(Record):
    """A way to log in with an identity provider (OIDC) or a signed token (JWT)."""

    name: str
    type: str = ""  # An `AuthMethodType`; text, so that validation can report another value.
    token_locality: str = ""  # A `TokenLocality`; text, as `type`.
    token_name_format: str = DEFAULT_TOKEN_NAME_FORMAT  # The name of tokens that a login creates.
    max_token_ttl: int = 0  # ns; the lifetime of tokens that a login creates; text like "1h0m0s" on the wire.
    default: bool = False  # Used by logins that name no method.
    config: AuthMethodConfig | None = None
    secrets_sealed: bytes = b""  # The redacted values of the configuration, encrypted; never in a reply.
    sealed_with: str = ""  # The ID of the keyring key that encrypted `secrets_sealed`.
    secrets_stamp: bytes = b""  # Changes with the secrets. Part of the hash, so that other regions notice the change.
    hash: bytes = b""  # A digest of the content.
    create_time: datetime.datetime | None = None
    modify_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0


def list_auth_method_problems(method: AuthMethod, *, limits: LifetimeLimits) -> list[str]:
    """Return an error text for each thing that is wrong with a submitted auth method; empty if it is valid.

    `limits` are those of the lifetime of its tokens.
    """
    found = []
    if not is_valid_name(method.name):
        found.append(f"invalid name '{method.name}': {NAME_RULE_TEXT}")
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
    unsupported = next((name for name in method.config.signing_algs or () if name not in SIGNING_ALGORITHMS), None)
    if unsupported is not None:
        found.append(
            f"config: invalid SigningAlgs value '{unsupported}': must be one of {', '.join(SIGNING_ALGORITHMS)}"
        )
    match method.type:
        case AuthMethodType.OIDC:
            found += _list_oidc_problems(method.config)
        case AuthMethodType.JWT:
            found += _list_jwt_problems(method.config)
    return found


def _list_oidc_problems(config: AuthMethodConfig) -> list[str]:
    """Return an error text for each required field that the configuration of an OIDC method lacks."""
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
    """Return an error text unless the configuration of a JWT method sets exactly one source of public keys."""
    sources = [config.jwks_url, config.jwt_validation_pub_keys, config.oidc_discovery_url]
    if sum(1 for source in sources if source) != 1:
        return ["config: exactly one of JWKSURL, JWTValidationPubKeys and OIDCDiscoveryURL must be set"]
    return []
