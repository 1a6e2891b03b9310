"""What a request shows of itself: the form of its credential, read from the `Authorization` header.

Only the form is judged here. Whether a token exists, and whose it is, the directory knows.
"""

import base64
import binascii
import hashlib
import re
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import CredentialKind

MAX_BASIC_BYTES: Final = 4_096
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,4096}")

# A token tells its kind by how it begins. Installations and workflows share one: only the directory can tell them apart.
KINDS_BY_PREFIX: Final = {
    "ghp_": (CredentialKind.PERSONAL_TOKEN,),
    "github_pat_": (CredentialKind.PERSONAL_TOKEN,),
    "gho_": (CredentialKind.OAUTH_TOKEN,),
    "ghu_": (CredentialKind.APP_USER_TOKEN,),
    "ghs_": (CredentialKind.INSTALLATION_TOKEN, CredentialKind.WORKFLOW_TOKEN),
}


class PresentedToken(msgspec.Struct, frozen=True):
    sha256: str
    user_name: str | None = None
    """With basic authentication, who the sender says they are."""
    kinds: tuple[CredentialKind, ...] = ()
    """What the token's beginning says it is; empty if it says nothing."""


class PresentedClient(msgspec.Struct, frozen=True):
    """A name and a secret: a client id with its secret, or a name with a token as password."""

    client_id: str
    secret_sha256: str
    token: PresentedToken
    """The same pair read as a user name and a token."""
    token_in_name: PresentedToken
    """The same pair read as a token in the place of the user name."""


class NoCredential(msgspec.Struct, frozen=True):
    pass


class MalformedCredential(msgspec.Struct, frozen=True):
    """A credential that cannot be one. The message is for its sender."""

    message: str


PresentedCredential = NoCredential | PresentedToken | PresentedClient | MalformedCredential


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read_credential(authorization: str | None, query: str = "") -> PresentedCredential:
    """Read what a request shows. `query` is its query string, in which credentials are no longer taken."""
    if query and any(part.partition("=")[0] in ("access_token", "client_secret") for part in query.split("&")):
        return MalformedCredential("Credentials are not taken from the query: send them in the Authorization header.")
    if authorization is None or not authorization.strip():
        return NoCredential()
    scheme, _, value = authorization.strip().partition(" ")
    match scheme.lower():
        case "token" | "bearer":
            return _token(value.strip())
        case "basic":
            return _basic(value.strip())
        case _:
            return MalformedCredential(
                "The Authorization header is not read: write 'Bearer' and a token, or use basic authentication."
            )


def parse_token(token: str, user_name: str | None = None) -> PresentedToken:
    kinds = next((kinds for prefix, kinds in KINDS_BY_PREFIX.items() if token.startswith(prefix)), ())
    return PresentedToken(hash_secret(token), user_name, kinds)


def _token(token: str) -> PresentedCredential:
    if _TOKEN.fullmatch(token) is None:
        return MalformedCredential("Bad credentials")
    return parse_token(token)


def _basic(encoded: str) -> PresentedCredential:
    if len(encoded) > MAX_BASIC_BYTES:
        return MalformedCredential("Bad credentials")
    try:
        name, colon, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return MalformedCredential("Bad credentials")
    if not colon or not (name or secret):
        return MalformedCredential("Bad credentials")
    return PresentedClient(name, hash_secret(secret), parse_token(secret, name), parse_token(name))
