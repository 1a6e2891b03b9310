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
MAX_DEPTH: Final = 9
UNEXPECTED: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1.5, 1e308, "", "x", [], {}, [None], {"": None}, [[[[]]]], {"a": {"b": {"c": 1}}}, 2**64,
)  # fmt: skip
RAW_BODIES: Final = (
    b"", b" ", b"null", b"[]", b"{}", b"true", b"0", b'""', b"{", b'{"', b"}", b"[" * 5_000, b'{"a":' * 3_000, b"\xff\xfe",
    b"\xef\xbb\xbf{}", b"NaN", b'{"Job":NaN}', b'{"Job":1e999}', b'{"a":1,"a":2}', b"\x00" * 64, b"<xml/>", b"a=b&c=d",
    b'{"Job":' + b"9" * 5_000 + b"}", b'"\\ud800"', b'{"\\ud800":1}', b"{} {}",
)  # fmt: skip


def generate_body(rng: Random, kind: Any, samples: tuple[bytes, ...] = ()) -> bytes:
    """Return a body for an endpoint with this body type (`None`: no body). `samples` are valid bodies."""
    probability = rng.random()
    if kind is None:
        return b"" if probability < 0.8 else rng.choice(RAW_BODIES)
    if probability < 0.05:
        return rng.choice(RAW_BODIES)
    if kind is bytes:
        return rng.randbytes(rng.choice((0, 1, 100, 5_000)))
    value = (
        json.loads(rng.choice(samples))
        if samples and probability < 0.5
        else _generate_value(rng, inspect.type_info(kind), 0)
    )
    for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
        value = _damage_value(rng, value)
    data = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    return damage_bytes(rng, data) if rng.random() < 0.08 else data


def _generate_value(rng: Random, kind: inspect.Type, depth: int) -> Any:
    """Return a value of a type, with unexpected members now and then. Nested values end at `MAX_DEPTH`."""
    match kind:
        case inspect.StructType():
            return _generate_struct(rng, kind, depth)
        case inspect.VarTupleType() | inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
            count = 0 if depth > MAX_DEPTH else rng.choice((0, 1, 1, 2, 3))
            return [_generate_value(rng, kind.item_type, depth + 1) for _ in range(count)]
        case inspect.DictType():
            count = 0 if depth > MAX_DEPTH else rng.choice((0, 1, 2))
            return {rng.choice(TEXTS): _generate_value(rng, kind.value_type, depth + 1) for _ in range(count)}
        case inspect.UnionType():
            return _generate_value(rng, rng.choice(kind.types), depth)
        case inspect.EnumType():
            return rng.choice([member.value for member in kind.cls] if rng.random() < 0.9 else TEXTS)
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.IntType():
            return rng.choice(NUMBERS if rng.random() < 0.4 else NUMBERS[:8])
        case inspect.FloatType():
            return rng.choice((0, 0.5, -1.5, 1e308, 3))
        case inspect.NoneType():
            return None
        case inspect.StrType() | inspect.BytesType() | inspect.DateTimeType():
            return rng.choice(TEXTS)
        case _:
            return rng.choice(UNEXPECTED)


def _generate_struct(rng: Random, kind: inspect.StructType, depth: int) -> dict[str, Any]:
    share = rng.choice((0.1, 0.3, 0.6)) if depth < 4 else 0.15
    fields = [field for field in kind.fields if depth <= MAX_DEPTH and (field.required or rng.random() < share)]
    return {_change_case(rng, field.encode_name): _generate_value(rng, field.type, depth + 1) for field in fields}


def _change_case(rng: Random, name: str) -> str:
    """Return a field name, sometimes in another case, because names match in any case."""
    probability = rng.random()
    if probability < 0.03:
        return name.lower()
    return name.upper() if probability < 0.06 else name


def _damage_value(rng: Random, value: Any) -> Any:
    """Return the value with one part replaced by an unexpected value or removed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.1:
            del changed[key]
        else:
            changed[key] = _damage_value(rng, value[key])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        position = rng.randrange(len(value))
        return [*value[:position], _damage_value(rng, value[position]), *value[position + 1 :]]
    if isinstance(value, str) and rng.random() < 0.6:
        return rng.choice(TEXTS)
    if isinstance(value, int) and rng.random() < 0.6:
        return rng.choice(NUMBERS)
    return rng.choice(UNEXPECTED)


def damage_bytes(rng: Random, data: bytes) -> bytes:
    """Return the data truncated, with a repeated part, or with changed bytes."""
    if not data:
        return rng.randbytes(3)
    position = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            return data[:position]
        case 1:
            return data[:position] + rng.randbytes(rng.choice((1, 2, 8))) + data[position:]
        case 2:
            return data[:position] + bytes([rng.randrange(256)]) + data[position + 1 :]
        case _:
            return data[:position] + data[max(0, position - 40) :]


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)
