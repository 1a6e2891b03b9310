"""Request bodies, generated from the types in the endpoint table and then made invalid.

The caller passes the random generator, so that the same seed gives the same body.
"""

import json
from random import Random
from typing import Any, Final

import msgspec
from msgspec import inspect

TEXTS: Final = (
    "", "shop", "nightly", "convert", "agent", "web", "server", "default", "dev", "all", "service", "batch", "system",
    "sysbatch", "docker", "raw_exec", "mock", "global", "dc1", "*", "client", "management", "reader", "writer", "30s", "1h",
    "-1s", "5m0s", "manual", "canary", "linux", "${attr.kernel.name}", "${node.class}", "distinct_hosts", "version", "=",
    "!=", "regexp", "~> 1.0", "[", "(", "(a+)+$", "\u0000", "\u202e", "é", "\U0001f6a2", "a/b", "../..", "a b", "%2e%2e",
    "0 3 * * *", "*/5 * * * * * *", "@daily", "UTC", "Europe/Berlin", "null", "true", "0", "-1", "x" * 300, " ",
    'namespace "default" { policy = "read" }', 'namespace "*" { policy = "write" } node { policy = "read" }', "namespace {",
    '{"namespace": {"default": {"policy": "write"}}}', "http://127.0.0.1:1", "00000001-0000-4000-8000-000000000000",
    "2026-11-21T12:00:00Z", "Name == \"x\"", "aGVsbG8=", "single-node-writer", "host", "ready", "eligible", "ineligible",
)  # fmt: skip
NUMBERS: Final = (
    0, 1, -1, 2, 3, 10, 50, 100, 101, 1_000, 65_535, 65_536, 1_000_000_000, 30_000_000_000, 2**31 - 1, 2**31, -(2**31), 2**53,
    2**63 - 1, 2**63, -(2**63), 2**64, 10**40,
)  # fmt: skip
DEPTH_MAX: Final = 9
ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1.5, 1e308, "", "x", [], {}, [None], {"": None}, [[[[]]]], {"a": {"b": {"c": 1}}}, 2**64,
)  # fmt: skip
RAW: Final = (
    b"", b" ", b"null", b"[]", b"{}", b"true", b"0", b'""', b"{", b'{"', b"}", b"[" * 5_000, b'{"a":' * 3_000, b"\xff\xfe",
    b"\xef\xbb\xbf{}", b"NaN", b'{"Job":NaN}', b'{"Job":1e999}', b'{"a":1,"a":2}', b"\x00" * 64, b"<xml/>", b"a=b&c=d",
    b'{"Job":' + b"9" * 5_000 + b"}", b'"\\ud800"', b'{"\\ud800":1}', b"{} {}",
)  # fmt: skip


def body_for(chance: Random, kind: Any, samples: tuple[bytes, ...] = ()) -> bytes:
    """Return a body for an endpoint with this body type (`None`: no body). `samples` are valid bodies."""
    draw = chance.random()
    if kind is None:
        return b"" if draw < 0.8 else chance.choice(RAW)
    if draw < 0.05:
        return chance.choice(RAW)
    if kind is bytes:
        return chance.randbytes(chance.choice((0, 1, 100, 5_000)))
    value = json.loads(chance.choice(samples)) if samples and draw < 0.5 else _value(chance, inspect.type_info(kind), 0)
    for _ in range(chance.choice((0, 0, 1, 1, 2, 5))):
        value = _spoiled(chance, value)
    data = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass")
    return spoiled_bytes(chance, data) if chance.random() < 0.08 else data


def _value(chance: Random, kind: inspect.Type, depth: int) -> Any:
    match kind:
        case inspect.StructType():
            return _struct(chance, kind, depth)
        case inspect.VarTupleType() | inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
            count = 0 if depth > DEPTH_MAX else chance.choice((0, 1, 1, 2, 3))
            return [_value(chance, kind.item_type, depth + 1) for _ in range(count)]
        case inspect.DictType():
            count = 0 if depth > DEPTH_MAX else chance.choice((0, 1, 2))
            return {chance.choice(TEXTS): _value(chance, kind.value_type, depth + 1) for _ in range(count)}
        case inspect.UnionType():
            return _value(chance, chance.choice(kind.types), depth)
        case inspect.EnumType():
            return chance.choice([member.value for member in kind.cls] if chance.random() < 0.9 else TEXTS)
        case inspect.BoolType():
            return chance.random() < 0.5
        case inspect.IntType():
            return chance.choice(NUMBERS if chance.random() < 0.4 else NUMBERS[:8])
        case inspect.FloatType():
            return chance.choice((0, 0.5, -1.5, 1e308, 3))
        case inspect.NoneType():
            return None
        case inspect.StrType() | inspect.BytesType() | inspect.DateTimeType():
            return chance.choice(TEXTS)
        case _:
            return chance.choice(ODD)


def _struct(chance: Random, kind: inspect.StructType, depth: int) -> dict[str, Any]:
    share = chance.choice((0.1, 0.3, 0.6)) if depth < 4 else 0.15
    fields = [field for field in kind.fields if depth <= DEPTH_MAX and (field.required or chance.random() < share)]
    return {_cased(chance, field.encode_name): _value(chance, field.type, depth + 1) for field in fields}


def _cased(chance: Random, name: str) -> str:
    """Return a field name, sometimes in another case, because names match in any case."""
    draw = chance.random()
    if draw < 0.03:
        return name.lower()
    return name.upper() if draw < 0.06 else name


def _spoiled(chance: Random, value: Any) -> Any:
    """Return the value with one part replaced by an unexpected value or removed."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        changed = dict(value)
        if chance.random() < 0.1:
            del changed[key]
        else:
            changed[key] = _spoiled(chance, value[key])
        return changed
    if isinstance(value, list) and value and chance.random() < 0.9:
        position = chance.randrange(len(value))
        return [*value[:position], _spoiled(chance, value[position]), *value[position + 1 :]]
    if isinstance(value, str) and chance.random() < 0.6:
        return chance.choice(TEXTS)
    if isinstance(value, int) and chance.random() < 0.6:
        return chance.choice(NUMBERS)
    return chance.choice(ODD)


def spoiled_bytes(chance: Random, data: bytes) -> bytes:
    """Return the data truncated, with a repeated part, or with changed bytes."""
    if not data:
        return chance.randbytes(3)
    position = chance.randrange(len(data))
    match chance.randrange(4):
        case 0:
            return data[:position]
        case 1:
            return data[:position] + chance.randbytes(chance.choice((1, 2, 8))) + data[position:]
        case 2:
            return data[:position] + bytes([chance.randrange(256)]) + data[position + 1 :]
        case _:
            return data[:position] + data[max(0, position - 40) :]


def encoded(value: object) -> bytes:
    return msgspec.json.encode(value)
