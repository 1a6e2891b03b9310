"""Every list, map, text and free value of every body has a limit, which is checked while the body is decoded.

The bodies are generated from the endpoint table, so a new endpoint or field needs no change here.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from tests.bounded_work.worst_bodies import Path, build_body
from wharf.contract.model.body_limits import LIMITS_BY_FIELD, MAX_ITEMS, MAX_KEY_CHARS, FieldLimits
from wharf.contract.model.decoding import MAX_JSON_DEPTH, DecodingError, decode_record
from wharf.contract.wire.endpoint_table import ENDPOINTS

BODY_TYPES: Final = list(
    {endpoint.body_type: None for endpoint in ENDPOINTS if endpoint.body_type not in (None, bytes)}
)
"""The types of all bodies that are decoded."""


def nest(levels: int) -> Any:
    """Return a list in so many lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class Excess(NamedTuple):
    """A value above a limit."""

    what: str
    path: Path
    value: Any


def iter_excesses(kind: inspect.Type, seen: set[str], path: Path = (), field: str = "") -> Iterator[Excess]:
    """Yield values above a limit for each field that is not in `seen`. "[]" stands for an element of a list or map.

    Limits depend on the field and its record, so a record that occurs in many bodies is generated once.
    """
    if isinstance(kind, inspect.UnionType):
        kind = next(member for member in kind.types if not isinstance(member, inspect.NoneType))
    limits = LIMITS_BY_FIELD.get(field, FieldLimits(""))
    match kind:
        case inspect.StructType():
            if path:
                yield Excess("a field that nobody reads", path, {"Unread": [1] * (MAX_ITEMS + 1)})
            for each in kind.fields:
                name = f"{kind.cls.__name__}.{each.encode_name}"
                if name not in seen:
                    seen.add(name)
                    yield from iter_excesses(each.type, seen, (*path, each.encode_name), name)
        case inspect.VarTupleType() | inspect.ListType():
            yield Excess("items", path, [None] * (limits.max_items + 1))
            for excess in iter_excesses(kind.item_type, seen, (*path, "[]"), field):
                is_element = excess.path == (*path, "[]")
                yield excess._replace(value=[excess.value]) if is_element else excess
        case inspect.DictType():
            yield Excess("entries", path, {f"k{number}": None for number in range(limits.max_items + 1)})
            yield Excess("a key", path, {"k" * (MAX_KEY_CHARS + 1): None})
            for excess in iter_excesses(kind.value_type, seen, (*path, "[]"), field):
                is_element = excess.path == (*path, "[]")
                yield excess._replace(value={"k": excess.value}) if is_element else excess
        case inspect.AnyType() | inspect.RawType():
            yield Excess("items of a free value", path, {"a": [1] * (MAX_ITEMS + 1)})
            yield Excess("depth of a free value", path, nest(MAX_JSON_DEPTH + 2))
            yield Excess("a text in a free value", path, {"a": ["x" * (limits.max_text_chars + 1)]})
        case inspect.StrType() | inspect.BytesType():
            yield Excess("a text", path, "x" * (limits.max_text_chars + 1))


def test_everything_in_every_body_has_a_limit() -> None:
    seen: set[str] = set()
    unlimited, count = [], 0
    for body_type in BODY_TYPES:
        assert body_type is not None
        for excess in iter_excesses(inspect.type_info(body_type), seen):
            count += 1
            body = msgspec.json.encode(build_body(body_type, excess.path, excess.value, ""))
            try:
                decode_record(body_type, body)
            except DecodingError as error:
                if re.search("more than the limit|long|nested deeper", str(error)) is None:
                    unlimited.append((body_type, excess.what, excess.path, str(error)))
            else:
                unlimited.append((body_type, excess.what, excess.path, "accepted"))

    assert unlimited == []
    assert count > 500
