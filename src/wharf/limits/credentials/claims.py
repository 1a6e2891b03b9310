"""Reads the owner of a credential from the claims in a reply or a token."""

from collections.abc import Mapping
from typing import Final

from wharf.limits.config.credential_settings import ClaimNames
from wharf.limits.core.callers.carriers import get_claim
from wharf.limits.core.callers.recognition import MAX_NAME_CHARACTERS, CredentialOwner

MAX_SCOPES: Final = 100
"""Scopes of a token that are read; limits the header that lists them."""
MAX_EXPIRY_S: Final = 1 << 40
"""Later times are ignored; protects the arithmetic of times."""


def read_owner(
    claims: Mapping[str, object], names: ClaimNames, *, expires_ms: int | None = None
) -> CredentialOwner | None:
    """Return the owner that the claims name; `None` if they name none."""
    user, app, organization = (
        _read_name(get_claim(claims, name) if name else None) for name in (names.user, names.app, names.organization)
    )
    if user is None and app is None and organization is None:
        return None
    user_id = get_claim(claims, names.user_id) if names.user_id else None
    scopes = get_claim(claims, names.scopes) if names.scopes else None
    return CredentialOwner(
        user=user,
        user_id=user_id if isinstance(user_id, int) and not isinstance(user_id, bool) else None,
        app=app,
        organization=organization,
        scopes=_read_scopes(scopes),
        expires_ms=expires_ms,
    )


def read_expiry_ms(claims: Mapping[str, object]) -> int | None:
    """Return the time in the claim `exp`, which is in Unix seconds, in milliseconds; `None` without a valid one."""
    expiry = claims.get("exp")
    if isinstance(expiry, bool) or not isinstance(expiry, int | float) or not 0 < expiry < MAX_EXPIRY_S:
        return None
    return int(expiry * 1_000)


def _read_name(value: object) -> str | None:
    """Return a text or a whole number as a name; `None` for anything else, and for names that are too long."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARACTERS or not value.isprintable():
        return None
    return value


def _read_scopes(value: object) -> tuple[str, ...]:
    """Return scopes from a text with spaces or a list of texts. Others than printable ASCII are left out."""
    entries = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    texts = [text for text in entries[:MAX_SCOPES] if isinstance(text, str)]
    return tuple(text for text in texts if len(text) <= MAX_NAME_CHARACTERS and text.isascii() and text.isprintable())
