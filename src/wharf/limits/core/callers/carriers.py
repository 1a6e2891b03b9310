"""The parts of a request that carry credentials: the `Authorization` header, and the headers, cookies and query parameters
that an operator names.

Only the format is read here. Whether a credential is valid is decided elsewhere.
"""

import base64
import functools
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final
from urllib.parse import unquote_plus

import msgspec

from wharf.limits.core.callers.credentials import (
    MAX_BASIC_BYTES,
    WHITE_SPACE,
    PresentedCredential,
    parse_authorization,
    parse_token,
)

MAX_CREDENTIALS: Final = 4
"""Credentials of one request that are read; limits the work for a request. A client sends one, sometimes two."""
MAX_CREDENTIAL_CHARACTERS: Final = 16_384
"""The longest credential. Longer ones are ignored. A JSON Web Token with many claims has 8,000 characters."""
MAX_COOKIES: Final = 100
"""Cookies of one request that are read; limits the work for a request."""
MIN_TOKEN_CHARACTERS: Final = 20
"""A password of this length is taken for a token: the user name beside it does not matter."""
OAUTH_PASSWORD: Final = "x-oauth-basic"
"""The password beside a token that is sent as the user name."""
AUTHORIZATION: Final = "authorization"
_NO_BASE64_SIGN: Final = re.compile(r"[^A-Za-z0-9+/]")
_QUOTED_SIGN: Final = re.compile(r"\\(?:([0-3][0-7]{2})|(.))")
_REPLACED_SIGN: Final = re.compile(rb"[^-0-9a-z]")


class BasicForm(Enum):
    """What Basic authentication can carry."""

    TOKEN_PASSWORD = "token_password"
    """A token as the password, with any user name, as git sends it."""
    TOKEN_NAME = "token_name"
    """A token as the user name, with no password or `x-oauth-basic`."""
    USER_PASSWORD = "user_password"
    """A user name and a password, which count together."""


class CarrierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a request, besides `Authorization`, that carry credentials. All names are in lower case."""

    headers: tuple[str, ...] = ()
    """Headers whose whole value is a token, such as `private-token`. Each spelling of `normalize_header_name` is read."""
    cookies: tuple[str, ...] = ()
    """Cookies of sessions, with their exact names."""
    query: tuple[str, ...] = ()
    """Query parameters, with their exact names."""
    basic: tuple[BasicForm, ...] = tuple(BasicForm)
    """The forms of Basic authentication that are read, in this order of preference."""

    @property
    def has_extra(self) -> bool:
        """Whether more than the `Authorization` header is read."""
        return bool(self.headers or self.cookies or self.query)


class CarriedCredential(msgspec.Struct, frozen=True):
    """One credential of a request."""

    carrier: str
    """`authorization`, or the kind and name of another carrier, such as `header private-token`."""
    text: str
    """The value of the carrier as it was sent."""
    secret: str
    """What identifies the credential. It is the same for a token in each carrier, except in a cookie."""
    presented: PresentedCredential
    """The credential as the directory looks it up."""

    @property
    def is_cookie(self) -> bool:
        return self.carrier.startswith("cookie ")


def normalize_header_name(name: bytes) -> bytes:
    """Return a name in lower case with `-` for each sign that is not a letter or digit.

    Services cannot tell apart names with the same result: CGI, WSGI and similar interfaces write `_` for all of these signs.
    """
    return _REPLACED_SIGN.sub(b"-", name.lower())


@functools.lru_cache(maxsize=64)
def _index_headers(headers: tuple[str, ...]) -> Mapping[bytes, str]:
    """Return the carrier of each configured header, by its normalized name. Settings do not change, so there are few."""
    return {normalize_header_name(name.encode("latin-1", "replace")): f"header {name}" for name in headers}


def find_carried(headers: Iterable[tuple[bytes, bytes]], settings: CarrierSettings) -> tuple[tuple[str, str], ...]:
    """Return the configured headers and cookies of a request, each as carrier and value.

    `headers` are pairs of name in lower case and value.
    """
    found: list[tuple[str, str]] = []
    carriers = _index_headers(settings.headers)
    for name, value in headers:
        if name == b"cookie":
            if settings.cookies:
                for part in value.decode("latin-1").split(";", MAX_COOKIES)[:MAX_COOKIES]:
                    cookie, equals, content = part.strip(WHITE_SPACE).partition("=")
                    if "%" in cookie:
                        cookie = unquote_plus(cookie)  # Some services do, such as those with Rack.
                    if equals and cookie in settings.cookies:
                        found.append((f"cookie {cookie}", content))
        elif carriers and (carrier := carriers.get(normalize_header_name(name))) is not None:
            found.append((carrier, value.decode("latin-1").strip(WHITE_SPACE)))
    return tuple(found[:MAX_CREDENTIALS])


def list_credentials(
    authorization: str | None, carried: Iterable[tuple[str, str]], query: str, settings: CarrierSettings
) -> tuple[CarriedCredential, ...]:
    """Return the credentials of a request, at most `MAX_CREDENTIALS`. `carried` comes from `find_carried`."""
    found: list[CarriedCredential] = []
    header = (authorization or "").strip(WHITE_SPACE)
    if header:
        found.append(
            CarriedCredential(AUTHORIZATION, header, _find_secret(header, settings.basic), parse_authorization(header))
        )
    for carrier, value in carried:
        token = value[7:].strip(WHITE_SPACE) if value[:7].lower() == "bearer " else value
        if token:
            secret = f"{carrier} {normalize_cookie(token)}" if carrier.startswith("cookie ") else token
            found.append(CarriedCredential(carrier, value, secret, parse_token(token)))
    if query and settings.query:
        for part in query.split("&"):
            name, _, value = part.partition("=")
            if value and unquote_plus(name) in settings.query:
                token = unquote_plus(value)
                found.append(CarriedCredential(f"query {unquote_plus(name)}", token, token, parse_token(token)))
                if len(found) > MAX_CREDENTIALS:
                    break
    return tuple(c for c in found[:MAX_CREDENTIALS] if len(c.text) <= MAX_CREDENTIAL_CHARACTERS)


def normalize_cookie(value: str) -> str:
    """Return the value of a cookie without quotes and escapes, which services decode, so that each session has one counter."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = _QUOTED_SIGN.sub(lambda match: chr(int(match[1], 8)) if match[1] else match[2], value[1:-1])
    if len(value) > MAX_CREDENTIAL_CHARACTERS:
        return value
    return unquote_plus(value, errors="surrogateescape")  # Different bytes stay different.


def _find_secret(header: str, forms: Iterable[BasicForm]) -> str:
    """Return what identifies the credential in an `Authorization` header: the token, else the whole header."""
    scheme, _, value = header.partition(" ")
    value = value.strip(WHITE_SPACE)
    match scheme.lower():
        case "token" | "bearer":
            return value
        case "basic":
            return _find_basic_secret(value, forms)
        case other:
            return f"{other} {value}"


def _find_basic_secret(encoded: str, forms: Iterable[BasicForm]) -> str:
    """Return the token in the credentials of Basic authentication, or both parts together."""
    whole = f"basic {encoded}"
    if len(encoded) > MAX_BASIC_BYTES:
        return whole
    # Many services skip other signs and need no padding. Otherwise each such form of a password would be another credential.
    digits = _NO_BASE64_SIGN.sub("", encoded.partition("=")[0].replace("-", "+").replace("_", "/"))
    digits = digits[: len(digits) - (len(digits) % 4 == 1)]
    if not digits:
        return whole
    decoded = base64.b64decode(digits + "=" * (-len(digits) % 4))
    name, _, password = decoded.decode("utf-8", "surrogateescape").partition(":")
    for form in forms:
        if form is BasicForm.TOKEN_PASSWORD and is_token_like(password):
            return password
        if form is BasicForm.TOKEN_NAME and password in ("", OAUTH_PASSWORD) and name:
            return name
        if form is BasicForm.USER_PASSWORD:
            break
    return f"basic {name}:{password}"


def is_token_like(text: str) -> bool:
    """Return whether a password is long enough to be a token, and has no spaces."""
    return len(text) >= MIN_TOKEN_CHARACTERS and text.isascii() and text.isprintable() and " " not in text


def get_claim(claims: Mapping[str, object], name: str) -> object:
    """Return the member of a JSON object that a dotted name such as `user.login` selects; `None` if it does not exist."""
    value: object = claims
    for part in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
