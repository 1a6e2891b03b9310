"""The credential that a request presents, parsed from its `Authorization` header.

Only the format is checked here. The directory decides whether a token exists and who owns it.
"""

import base64
import binascii
import hashlib
import re
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import CredentialKind

MAX_BASIC_BYTES: Final = 4_096
"""Longer basic credentials are rejected before they are decoded."""
WHITE_SPACE: Final = " \t"
"""White space around a value in HTTP. Other white space is part of the value, here and in the service."""
TWO_CREDENTIALS: Final = "twice"
"""Stands for the values of two `Authorization` headers: it is unclear which of them counts. It is never a valid credential."""
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,4096}")

# The prefix of a token names its kind. Installation and workflow tokens share a prefix; the directory distinguishes them.
KINDS_BY_PREFIX: Final = {
    "ghp_": (CredentialKind.PERSONAL_TOKEN,),
    "github_pat_": (CredentialKind.PERSONAL_TOKEN,),
    "gho_": (CredentialKind.OAUTH_TOKEN,),
    "ghu_": (CredentialKind.APP_USER_TOKEN,),
    "ghs_": (CredentialKind.INSTALLATION_TOKEN, CredentialKind.WORKFLOW_TOKEN),
}


class PresentedToken(msgspec.Struct, frozen=True):
    """A token that a request presents, identified by its hash."""

    sha256: str
    user_name: str | None = None
    """The user name that was sent with basic authentication; it is not verified."""
    kinds: tuple[CredentialKind, ...] = ()
    """The kinds that the token's prefix allows; empty if the prefix is unknown."""


class PresentedClient(msgspec.Struct, frozen=True):
    """The credentials of basic authentication: user name and password.

    They are a client id with its secret, a user name with a token, or a token in place of the user name.
    """

    client_id: str
    secret_sha256: str
    token: PresentedToken
    """The password, read as a token."""
    token_in_name: PresentedToken
    """The user name, read as a token."""


class NoCredential(msgspec.Struct, frozen=True):
    """The result for a request without a credential."""


class MalformedCredential(msgspec.Struct, frozen=True):
    """A credential that cannot be parsed. `message` is sent to the caller."""

    message: str


PresentedCredential = NoCredential | PresentedToken | PresentedClient | MalformedCredential


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret as hexadecimal digits. Secrets are compared and stored only as this hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read_credential(authorization: str | None, query: str = "") -> PresentedCredential:
    """Return the credential that a request presents.

    `query` is the query string of the request. Credentials in it are rejected, because URLs appear in logs.
    """
    if query and any(part.partition("=")[0] in ("access_token", "client_secret") for part in query.split("&")):
        return MalformedCredential(
            "Credentials in the query string are not accepted. Send them in the Authorization header."
        )
    return parse_authorization((authorization or "").strip(WHITE_SPACE))


def parse_authorization(credential: str) -> PresentedCredential:
    """Return the credential in the value of an `Authorization` header, which has no white space around it."""
    if not credential:
        return NoCredential()
    scheme, _, value = credential.partition(" ")
    match scheme.lower():
        case "token" | "bearer":
            return _parse_token_header(value.strip(WHITE_SPACE))
        case "basic":
            return _parse_basic_header(value.strip(WHITE_SPACE))
        case _:
            return MalformedCredential(
                "The scheme of the Authorization header is not supported. Send 'Bearer' and a token, or use basic authentication."
            )


def parse_token(token: str, user_name: str | None = None) -> PresentedToken:
    """Return a presented token: its hash, the unverified user name, and the kinds that its prefix allows."""
    kinds = next((kinds for prefix, kinds in KINDS_BY_PREFIX.items() if token.startswith(prefix)), ())
    return PresentedToken(hash_secret(token), user_name, kinds)


def _parse_token_header(token: str) -> PresentedCredential:
    """Return the token of a `Bearer` or `token` header, or `MalformedCredential` if no token has this form."""
    if _TOKEN.fullmatch(token) is None:
        return MalformedCredential("Bad credentials")
    return parse_token(token)


def _parse_basic_header(encoded: str) -> PresentedCredential:
    """Return the name and the secret of a `Basic` header, or `MalformedCredential` if it cannot be decoded."""
    if len(encoded) > MAX_BASIC_BYTES:
        return MalformedCredential("Bad credentials")
    try:
        name, colon, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return MalformedCredential("Bad credentials")
    if not colon or not (name or secret):
        return MalformedCredential("Bad credentials")
    return PresentedClient(name, hash_secret(secret), parse_token(secret, name), parse_token(name))
