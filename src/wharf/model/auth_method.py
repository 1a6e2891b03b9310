"""Login methods and binding rules: how somebody proven elsewhere gets a token here, and what the token may do.

Secrets of a method are stored sealed and apart; in the configuration they read `redacted`, as replies show them.
"""

import datetime
import enum

import msgspec

from wharf.model.record import Record

REDACTED = "redacted"


class AuthMethodType(enum.StrEnum):
    OIDC = "OIDC"
    JWT = "JWT"


class TokenLocality(enum.StrEnum):
    LOCAL = "local"
    GLOBAL = "global"


class BindType(enum.StrEnum):
    ROLE = "role"
    POLICY = "policy"
    MANAGEMENT = "management"


DEFAULT_NAME_FORMAT = "${auth_method_type}-${auth_method_name}"


class ClientAssertionKey(Record):
    """The private key that signs an assertion, or where the server finds it."""

    pem_key: str = ""
    pem_key_file: str = ""
    key_id: str = ""
    pem_cert: str = ""
    pem_cert_file: str = ""
    key_id_header: str = ""


class ClientAssertion(Record):
    """Proof of the client by a signed text in place of a secret."""

    key_source: str = ""
    audience: tuple[str, ...] | None = None
    key_algorithm: str = ""
    private_key: ClientAssertionKey | None = None
    extra_headers: dict[str, str] | None = None


class AuthMethodConfig(Record):
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
    expiration_leeway: int = 0  # ns; these three are text like "1m0s" on the wire.
    not_before_leeway: int = 0
    clock_skew_leeway: int = 0
    claim_mappings: dict[str, str] | None = None
    list_claim_mappings: dict[str, str] | None = None
    verbose_logging: bool = False


class AuthMethod(Record):
    name: str
    type: str = ""
    token_locality: str = ""
    token_name_format: str = DEFAULT_NAME_FORMAT
    max_token_ttl: int = 0  # ns; on the wire text like "1h0m0s".
    default: bool = False
    config: AuthMethodConfig | None = None
    secrets_sealed: bytes = b""  # What the configuration shows as redacted; never in a reply.
    sealed_with: str = ""
    hash: bytes = b""
    create_time: datetime.datetime | None = None
    modify_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0


class BindingRule(Record):
    """Gives a role or a policy to whoever logs in by a method and whose claims the selector accepts."""

    id: str
    description: str = ""
    auth_method: str = ""
    selector: str = ""
    bind_type: str = ""
    bind_name: str = ""
    hash: bytes = b""
    create_time: datetime.datetime | None = None
    modify_time: datetime.datetime | None = None
    create_index: int = 0
    modify_index: int = 0
