"""Encodes request bodies. Refuses numbers that JSON does not have; the encoder would write them as `null`."""

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect


def encode_body(body: object) -> bytes:
    """Return the body as JSON.

    Raises `ValueError` for an infinite number or NaN: it would become `null`, for which a server uses a default value.
    """
    data = msgspec.json.encode(body)
    kind: type = type(body)
    if b"null" in data and _may_hold_floats(kind):
        plain = msgspec.to_builtins(body)
        try:
            json.dumps(plain, allow_nan=False)
        except ValueError:
            raise ValueError(next(_iter_problems(plain, ""), "the body cannot be encoded as JSON")) from None
    return data


@lru_cache(maxsize=1_024)
def _may_hold_floats(kind: type) -> bool:
    """Return whether a value of this type can hold a float. Bodies of nodes, which are large, hold none."""
    return any(_iter_float_types(inspect.type_info(kind), set()))


def _iter_float_types(kind: inspect.Type, visited: set[type]) -> Iterator[bool]:
    """Yield true for each part of the type that is a float or can be anything."""
    match kind:
        case inspect.FloatType() | inspect.AnyType() | inspect.CustomType() | inspect.RawType():
            yield True
        case inspect.StructType() if kind.cls not in visited:
            visited.add(kind.cls)
            for field in kind.fields:
                yield from _iter_float_types(field.type, visited)
        case inspect.UnionType():
            for member in kind.types:
                yield from _iter_float_types(member, visited)
        case inspect.DictType():
            yield from _iter_float_types(kind.value_type, visited)
        case inspect.VarTupleType() | inspect.ListType():
            yield from _iter_float_types(kind.item_type, visited)


def _iter_problems(value: Any, path: str) -> Iterator[str]:
    """Yield a text for each number in the value that is not finite. The value consists of dicts, lists and scalars."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _iter_problems(member, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            yield from _iter_problems(member, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path or 'the body'}: {value} is not a finite number"
