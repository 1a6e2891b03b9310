"""What a login proves, as its method maps it: texts under `value.` and lists of texts under `list.`.

Claims that are not there, or are nothing that a text can stand for, are left out: a rule that asks for them binds nobody.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.model.acl.auth_methods import AuthMethodConfig


class MappedClaims(msgspec.Struct, frozen=True, rename={"values": "value", "lists": "list"}):
    values: dict[str, str] = {}
    lists: dict[str, tuple[str, ...]] = {}


def map_claims(config: AuthMethodConfig, claims: Mapping[str, object]) -> MappedClaims:
    """`claims`: those of the identity, as decoded from JSON. A mapping names a claim, or points into one: `/a/b`."""
    values = {}
    for source, name in (config.claim_mappings or {}).items():
        value = _text(_find(claims, source))
        if value is not None:
            values[name] = value
    lists = {}
    for source, name in (config.list_claim_mappings or {}).items():
        found = _find(claims, source)
        elements = found if isinstance(found, list | tuple) else (found,)
        texts = tuple(text for element in elements if (text := _text(element)) is not None)
        if texts or found in ([], ()):
            lists[name] = texts
    return MappedClaims(values, lists)


_ABSENT: Final = object()


def _find(claims: Mapping[str, object], source: str) -> object:
    if not source.startswith("/"):
        return claims.get(source, _ABSENT)
    found: object = claims
    for segment in source[1:].split("/"):
        key = segment.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key, _ABSENT)
        elif isinstance(found, list | tuple) and key.isascii() and key.isdecimal() and len(key) < 10:
            found = found[int(key)] if int(key) < len(found) else _ABSENT
        else:
            return _ABSENT
    return found


def _text(value: object) -> str | None:
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
