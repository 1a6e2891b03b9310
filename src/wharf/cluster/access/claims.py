"""The claims of a login, as the auth method maps them: texts under `value.` and lists of texts under `list.`.

Claims that are missing, or that have no text form, are left out. A rule that needs them grants nothing.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.model.acl.auth_methods import AuthMethodConfig


class MappedClaims(msgspec.Struct, frozen=True, rename={"values": "value", "lists": "list"}):
    """Claims under the names that binding rules use."""

    values: dict[str, str] = {}
    lists: dict[str, tuple[str, ...]] = {}


def map_claims(config: AuthMethodConfig, claims: Mapping[str, object]) -> MappedClaims:
    """Map the claims of an identity, decoded from JSON. A mapping names a claim, or points into one, such as `/a/b`."""
    values = {}
    for source, name in (config.claim_mappings or {}).items():
        value = _convert_to_text(_find_claim(claims, source))
        if value is not None:
            values[name] = value
    lists = {}
    for source, name in (config.list_claim_mappings or {}).items():
        claim = _find_claim(claims, source)
        elements = claim if isinstance(claim, list | tuple) else (claim,)
        texts = tuple(text for element in elements if (text := _convert_to_text(element)) is not None)
        if texts or claim in ([], ()):
            lists[name] = texts
    return MappedClaims(values, lists)


_ABSENT: Final = object()


def _find_claim(claims: Mapping[str, object], source: str) -> object:
    """Return the claim with this name or path; `_ABSENT` if it does not exist."""
    if not source.startswith("/"):
        return claims.get(source, _ABSENT)
    claim: object = claims
    for segment in source[1:].split("/"):
        key = segment.replace("~1", "/").replace("~0", "~")
        if isinstance(claim, Mapping):
            claim = claim.get(key, _ABSENT)
        elif isinstance(claim, list | tuple) and key.isascii() and key.isdecimal() and len(key) < 10:
            claim = claim[int(key)] if int(key) < len(claim) else _ABSENT
        else:
            return _ABSENT
    return claim


def _convert_to_text(value: object) -> str | None:
    """Return a scalar claim as text; None for anything else."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case _:
            return None
