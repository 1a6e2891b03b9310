"""The settings of credentials: which ones the limiter knows, where requests carry them, and who is asked for their owner."""

from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from wharf.limits.core.callers.carriers import CarrierSettings


class CredentialMode(Enum):
    """What happens to a credential that is not in the directory."""

    LISTED = "listed"
    """The request is answered with 401."""
    OPAQUE = "opaque"
    """The request is passed on. The credential counts by its keyed hash once the service has accepted it."""
    RESOLVED = "resolved"
    """The limiter asks who owns the credential."""


class QuestionKind(Enum):
    """Who is asked for the owner of a credential."""

    HOST = "host"
    """The service, with a GET request that carries the credential as the caller sent it."""
    HOOK = "hook"
    """A program of the operator, with a POST request in JSON."""
    INTROSPECTION = "introspection"
    """An authorization server, by OAuth token introspection (RFC 7662)."""


class ClaimNames(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a reply or token that name the owner. Dots select members of members; empty names are not read."""

    user: str = ""
    user_id: str = ""
    app: str = ""
    organization: str = ""
    scopes: str = ""


CLAIMS_OF_QUESTIONS: Final = {
    QuestionKind.HOST: ClaimNames(user="login", user_id="id"),
    QuestionKind.HOOK: ClaimNames(
        user="user", user_id="user_id", app="app", organization="organization", scopes="scopes"
    ),
    QuestionKind.INTROSPECTION: ClaimNames(user="username", app="client_id", scopes="scope"),
}
CLAIMS_OF_TOKENS: Final = ClaimNames(user="sub", app="client_id", scopes="scope")


class OpaqueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How credentials are counted whose owner is not known."""

    accepted_on: tuple[str, ...] = ()
    """Patterns of the requests whose replies prove a credential that is not a session, as in a rules file; all requests if it is empty."""
    sessions_accepted_on: tuple[str, ...] = ()
    """The same for session cookies; no request if it is empty."""
    accepted_ms: int = 24 * 3_600_000
    """How long a credential is accepted after its last proof."""
    accepted_most: int = 100_000
    """The maximum number of accepted credentials in memory. Each takes about 200 bytes."""
    new_most: int = 60
    """The maximum number of new credentials of an address in an hour, in all processes that share Redis."""


class ResolverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked for the owner of a credential, and how long answers are valid."""

    kind: QuestionKind = QuestionKind.HOST
    url: str = "/api/v1/user"
    """The URL of the question. For the service it can be a path."""
    claims: ClaimNames = CLAIMS_OF_QUESTIONS[QuestionKind.HOST]
    client_id: str = ""
    secret: str = msgspec.field(default="")
    """Authenticates the limiter at a hook or an authorization server."""
    ca_file: Path | None = None
    timeout_ms: int = 2_000
    """How long a request waits for an answer."""
    lifetime_ms: int = 300_000
    """How long an answer with an owner is valid."""
    unknown_ms: int = 60_000
    """How long the answer is valid that nobody owns a credential."""
    accepts_unknown: bool = False
    """Whether a credential that nobody owns counts by its hash once the service has accepted it, instead of by address."""
    answers_most: int = 100_000
    """The maximum number of cached answers. Each takes about 500 bytes."""
    questions_most: int = 32
    """The maximum number of questions at the same time; protects the service that answers them."""


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON Web Tokens that the limiter verifies itself."""

    issuer: str
    keys_url: str = ""
    keys_file: Path | None = None
    audience: str = ""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    claims: ClaimNames = CLAIMS_OF_TOKENS
    leeway_ms: int = 60_000
    refresh_ms: int = 3_600_000
    ca_file: Path | None = None


class CredentialSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of credentials."""

    mode: CredentialMode = CredentialMode.LISTED
    key_file: Path | None = None
    """The secret key of the hashes; by default a file in the data folder."""
    carriers: CarrierSettings = CarrierSettings()
    opaque: OpaqueSettings = OpaqueSettings()
    resolver: ResolverSettings | None = None
    """`None` without questions."""
    tokens: TokenSettings | None = None
    """`None` if no JSON Web Tokens are verified."""
    revocation_path: str = ""
    """The path of requests that revoke credentials; empty for none."""
    revocation_secret: str = ""
