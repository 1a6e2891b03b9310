"""Parts of signed tokens (JWT) that workload identities and logins share: base64url, the key id and error texts.

Signatures are verified by the callers, with the keys that they trust.
"""

import base64
from collections.abc import Iterable
from typing import Any, Final

import msgspec

MAX_TOKEN_DEPTH: Final = 32
"""Nesting levels of a header or of claims; protects the JOSE library and our own code, which recurse."""


def encode_base64url(data: bytes) -> str:
    """Return base64url without padding, as tokens have it."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode_base64url(text: str) -> bytes:
    """Decode base64url with or without padding. Raises `ValueError`."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def read_key_id(token: str) -> str | None:
    """Return the key id in the header of a token, or `None` if it has none. Raises `ValueError` if it is no token."""
    key_id = _read_part(token.partition(".")[0], "header").get("kid")
    return key_id if isinstance(key_id, str) else None


def read_unverified_claims(token: str) -> dict[str, Any]:
    """Return the claims of a token whose signature was not verified yet. Raises `ValueError` if it is no token.

    The JOSE library decodes JSON with the standard library, which accepts what is not JSON: NaN, infinite numbers, and
    characters that do not exist (lone surrogates). Such claims are invalid here, and so is such a header.
    """
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("the token does not consist of a header, claims and a signature")
    _read_part(parts[0], "header")
    return _read_part(parts[1], "payload")


def _read_part(text: str, what: str) -> dict[str, Any]:
    """Return the JSON object in a part of a token. Raises `ValueError`."""
    try:
        value = msgspec.json.decode(decode_base64url(text))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"the {what} of the token is not valid JSON") from error
    if not isinstance(value, dict):
        raise ValueError(f"the {what} of the token is not a JSON object")
    if _is_deeper(value, MAX_TOKEN_DEPTH):
        raise ValueError(f"the {what} of the token is nested more than {MAX_TOKEN_DEPTH} levels deep")
    return value


def _is_deeper(value: object, max_depth: int) -> bool:
    """Return whether decoded JSON has more levels of nesting than this."""
    level: list[object] = [value]
    for _ in range(max_depth):
        level = [inner for outer in level for inner in _iter_inner(outer)]
        if not level:
            return False
    return any(isinstance(inner, dict | list) for inner in level)


def _iter_inner(value: object) -> Iterable[object]:
    """Return the values of an object or a list; nothing for other values."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def describe_jose_error(error: Exception, *, default: str) -> str:
    """Return the reason that an error of the JOSE library gives, or `default` if it gives none."""
    return str(getattr(error, "description", "") or error).strip().rstrip(":") or default
