"""Parts of signed tokens (JWT) that workload identities and logins share: base64url, the key id and error texts.

Signatures are verified by the callers, with the keys that they trust.
"""

import base64

import msgspec


def encode_base64url(data: bytes) -> str:
    """Return base64url without padding, as tokens have it."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode_base64url(text: str) -> bytes:
    """Decode base64url with or without padding. Raises `ValueError`."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def read_key_id(token: str) -> str | None:
    """Return the key id in the header of a token, or `None` if it has none. Raises `ValueError` if it is no token."""
    try:
        header = msgspec.json.decode(decode_base64url(token.partition(".")[0]))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("the header of the token is not JSON") from error
    key_id = header.get("kid") if isinstance(header, dict) else None
    return key_id if isinstance(key_id, str) else None


def describe_jose_error(error: Exception, *, default: str) -> str:
    """Return the reason that an error of the JOSE library gives, or `default` if it gives none."""
    return str(getattr(error, "description", "") or error).strip().rstrip(":") or default
