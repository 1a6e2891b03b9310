"""Bodies of the largest permitted size, generated from the types in the endpoint table.

For each list, map and text that a body can hold, one body fills it up to its limit. Others are damaged, or filled with values
of the wrong type. A new endpoint or field needs no change here.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import inspect

from tests.fuzz.server_records import NODE_NAME, NODE_SECRET
from wharf.contract.model.body_limits import (
    LIMITS_BY_FIELD,
    MAX_INLINE_BODY_BYTES,
    MAX_INLINE_BYTES_BY_BODY,
    MAX_INLINE_ITEMS,
    MAX_INLINE_OBJECTS,
    MAX_INLINE_OBJECTS_BY_BODY,
    MAX_ITEMS,
    MAX_NAME_BYTES,
    MAX_TEXT_CHARS,
    MAX_TOTAL_ITEMS,
    MAX_TOTAL_ITEMS_BY_BODY,
    OBJECT_ITEMS,
)

MAX_BODY_BYTES: Final = 10_000_000
"""The default of `api.max_body_size`."""
MAX_DEPTH: Final = 6
"""Containers nested in one another that are filled. Deeper ones repeat the types of the outer ones."""
VALUES_BY_FIELD: Final[Mapping[str, Any]] = {
    "Driver": "mock", "Type": "service", "Datacenters": ["dc1"], "Namespace": "default", "Region": "global", "Priority": 50,
    "Config": {"run_for": "1s"}, "Count": 1, "Operand": "=", "LTarget": "${attr.kernel.name}", "RTarget": "linux",
    "NodePool": "default", "Provider": "wharf", "Eligibility": "eligible", "Context": "all", "Text": "shop",
}  # fmt: skip
"""Valid values of fields whose type does not say which values are valid."""


class BodyCase(msgspec.Struct, frozen=True):
    """A generated body and what it consists of."""

    name: str
    build: Callable[[], bytes]
    """Returns the body. Bodies that are not sent are not built."""


class _Budget:
    """How many items and bytes the rest of a body may have."""

    def __init__(self, items: int, bytes_left: int) -> None:
        self.items = items
        self.bytes = bytes_left

    def take(self, items: int, size: int) -> bool:
        """Use items and bytes. Return false if fewer are left."""
        if self.items < items or self.bytes < size:
            return False
        self.items -= items
        self.bytes -= size
        return True


Path = tuple[str, ...]
"""The fields from the body down to the list, map or text that is filled; "[]" stands for an element."""


def iter_worst_bodies(body_type: type, path_name: str, max_bytes: int = MAX_BODY_BYTES) -> Iterator[BodyCase]:
    """Yield the worst bodies of this type: the largest ones, and the largest ones that are decoded on the event loop.

    `path_name`: the id or name in the path of the request, or "". `max_bytes`: the limit of the endpoint. If it is so small that
    all bodies are decoded on the event loop, the largest ones are as large as it permits, and one larger body follows.
    """
    name = body_type.__name__
    path_values = _make_path_values(body_type, path_name)
    kind = inspect.type_info(body_type)
    is_small = max_bytes <= MAX_INLINE_BODY_BYTES
    inline_bytes = min(MAX_INLINE_BODY_BYTES, MAX_INLINE_BYTES_BY_BODY.get(name, MAX_INLINE_BODY_BYTES))
    inline_objects = MAX_INLINE_OBJECTS_BY_BODY.get(name, MAX_INLINE_OBJECTS)
    total = MAX_TOTAL_ITEMS_BY_BODY.get(name, MAX_TOTAL_ITEMS)
    for path in list_fillable_paths(kind):
        label = ".".join(path)
        yield BodyCase(f"full {label}", partial(_build_fitting, kind, path, path_values, total - 200, max_bytes))
        if is_small:
            for values, build in SMALL_VALUES.items():
                yield BodyCase(f"{values} in {label}", partial(_build_with, kind, path, path_values, build))
            continue
        inline = partial(
            _build_full,
            kind,
            path,
            path_values,
            items=MAX_INLINE_ITEMS - 200,
            size=inline_bytes * 9 // 10,
            objects=inline_objects // 3,  # A group has a map and a list besides.
        )
        yield BodyCase(f"inline {label}", inline)
        yield BodyCase(f"integers in {label}", partial(_build_with, kind, path, path_values, _list_integers))
        yield BodyCase(f"numbers in {label}", partial(_build_with, kind, path, path_values, _map_numbers))
    valid = _build_full(kind, (), path_values, items=1_000, size=min(100_000, max_bytes // 4))
    for label, damage in DAMAGED_BODIES.items():
        yield BodyCase(label, partial(damage, valid, max_bytes))
    if is_small:
        yield BodyCase("too large", partial(bytes, b" " * MAX_BODY_BYTES))


def _build_fitting(
    kind: inspect.Type, path: "Path", path_values: Mapping[str, str], items: int, max_bytes: int
) -> bytes:
    """Return a body that is full on this path and has at most `max_bytes`."""
    size = max_bytes - (4_000 if max_bytes > MAX_INLINE_BODY_BYTES else 0)
    while True:
        body = _build_full(kind, path, path_values, items=items, size=size)
        if len(body) <= max_bytes:
            return body
        size = size * 9 // 10


def _build_full(
    kind: inspect.Type,
    path: "Path",
    path_values: Mapping[str, str],
    *,
    items: int,
    size: int,
    objects: int = 1_000_000,
) -> bytes:
    """Return a body that is full on this path, encoded."""
    return _encode(_fill(kind, path, _Budget(items, size), path_values, [objects], ""))


def _build_with(
    kind: inspect.Type, path: "Path", path_values: Mapping[str, str], make_value: Callable[[], Any]
) -> bytes:
    """Return a small body with another value at the path, encoded."""
    return _encode(_put(kind, path, make_value(), path_values))


def _make_path_values(body_type: type, path_name: str) -> Mapping[str, str]:
    """Return the values of the fields that must agree with the path: bodies with others are refused early."""
    values = {
        f"{record}.{field}": path_name
        for record in (body_type.__name__, "Job", "Node", "HostVolume")
        for field in ("ID", "Name", "JobID", "DeploymentID")
    }
    return {**values, "Node.Name": NODE_NAME, "NodeRegistration.SecretID": NODE_SECRET}


def build_body(body_type: type, path: Path, value: Any, path_name: str) -> Any:
    """Return a small body with this value at the path. `path_name`: the id or name in the path of the request, or ""."""
    return _put(inspect.type_info(body_type), path, value, _make_path_values(body_type, path_name))


def _list_integers() -> list[int]:
    return [1] * 1_000_000


def _map_numbers() -> dict[str, int]:
    return {f"k{number}": number for number in range(4_900)}


SMALL_VALUES: Final[Mapping[str, Callable[[], Any]]] = {
    "empty objects": lambda: [{}] * 4_990,
    "empty lists": lambda: [[]] * 4_990,
    "integers": lambda: [1] * 20_000,
    "numbers": lambda: {f"k{number}": number for number in range(4_000)},
}
"""Values of up to 60 kB in place of a list, map or text."""

DAMAGED_BODIES: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "spaces before": lambda valid, size: b" " * (size - len(valid)) + valid,
    "a broken end": lambda valid, size: valid[:-1] + b',"x":"' + b"x" * (size - len(valid) - 20) + b'"',
    "bad UTF-8 at the end": lambda valid, size: valid[:-1] + b',"x":"' + b"x" * (size - len(valid) - 30) + b'\xff"}',
    "many lines and a broken end": lambda valid, size: valid[:-1] + b"\n" * (size - len(valid) - 10) + b"!}",
    "unknown fields": lambda _, size: _encode({f"unknown{number}": number for number in range(size // 33)}),
    "few unknown fields": lambda _, size: _encode(
        {f"TaskGroop{number}": number for number in range(min(990, size // 20))}
    ),
    "equal fields": lambda _, size: b"{" + b'"Name":"x",' * ((size - 20) // 11) + b'"Name":"x"}',
    "deep lists": lambda _, size: b'{"Job":' + b"[" * (size * 3 // 10) + b"]" * (size * 3 // 10) + b"}",
    "a broken deep list": lambda _, size: b'{"Job":' + b'[{"a":' * (size * 3 // 20),
    "a long number": lambda _, size: b'{"Job":' + b"9" * (size - 20) + b"}",
    "escapes": lambda _, size: b'{"Name":"' + b"\\u0041" * ((size - 20) // 6) + b'"}',
    "empty lists": lambda _, size: b"[" + b"[]," * ((size - 10) // 3) + b"[]]",
}
"""Large bodies that are not valid JSON, or hold nothing that the type knows, made from a valid body."""


def list_fillable_paths(kind: inspect.Type) -> list[Path]:
    """Return the paths of all lists, maps and texts of a body; texts only if they have a limit of their own."""
    paths: list[Path] = []
    _collect_paths(kind, (), frozenset(), paths)
    return paths


def _collect_paths(kind: inspect.Type, path: Path, parents: frozenset[type], paths: list[Path]) -> None:
    kind = _without_none(kind)
    if len(path) > MAX_DEPTH * 2:
        return
    match kind:
        case inspect.StructType():
            if kind.cls in parents:
                return
            for field in kind.fields:
                name = f"{kind.cls.__name__}.{field.encode_name}"
                if name in LIMITS_BY_FIELD and LIMITS_BY_FIELD[name].max_text_chars > MAX_TEXT_CHARS:
                    paths.append((*path, field.encode_name))
                _collect_paths(field.type, (*path, field.encode_name), parents | {kind.cls}, paths)
        case inspect.VarTupleType() | inspect.ListType():
            paths.append((*path, "[]"))
            _collect_paths(kind.item_type, (*path, "[]"), parents, paths)
        case inspect.DictType():
            paths.append((*path, "[]"))
            _collect_paths(kind.value_type, (*path, "[]"), parents, paths)
        case inspect.AnyType() | inspect.RawType():
            paths.append(path)


def _fill(
    kind: inspect.Type, path: Path, budget: _Budget, path_values: Mapping[str, str], counter: list[int], field: str
) -> Any:
    kind = _without_none(kind)
    match kind:
        case inspect.StructType():
            counter[0] -= 1
            budget.take(OBJECT_ITEMS, 40)
            values = {}
            for each in kind.fields:
                is_next = bool(path) and each.encode_name == path[0]
                if (
                    is_next
                    or each.required
                    or each.encode_name
                    in ("ID", "Name", "JobID", "DeploymentID", *VALUES_BY_FIELD, "Tasks", "TaskGroups", "Job")
                ):
                    name = f"{kind.cls.__name__}.{each.encode_name}"
                    values[each.encode_name] = _fill(
                        each.type, path[1:] if is_next else (), budget, path_values, counter, name
                    )
            return values
        case inspect.VarTupleType() | inspect.ListType():
            return list(_fill_elements(kind.item_type, path, budget, path_values, counter, field))
        case inspect.DictType():
            elements = _fill_elements(kind.value_type, path, budget, path_values, counter, field)
            return {f"k{number:05d}": value for number, value in enumerate(elements)}
        case inspect.AnyType() | inspect.RawType():
            return [{"a": [number]} for number in range(MAX_ITEMS - 10)] if field.endswith("Config") else "x"
        case _:
            return _make_scalar(kind, field, path_values, budget, counter, is_filled=bool(field in LIMITS_BY_FIELD))


def _fill_elements(
    item_type: inspect.Type, path: Path, budget: _Budget, path_values: Mapping[str, str], counter: list[int], field: str
) -> Iterator[Any]:
    """Yield as many elements as the limits allow; one if the list is not on the path."""
    short = field.partition(".")[2]
    if not path and isinstance(VALUES_BY_FIELD.get(short), list):
        yield from VALUES_BY_FIELD[short]
        return
    is_filled = bool(path) or short not in ("Tasks", "TaskGroups")
    limit = LIMITS_BY_FIELD[field].max_items if field in LIMITS_BY_FIELD else MAX_ITEMS
    count = limit if is_filled and not (not path and short in VALUES_BY_FIELD) else 1
    # Lists above the filled one share the budget: the outer one has fewer elements, each as full as possible.
    inner = tuple(step for step in path if step == "[]")
    if len(inner) > 1:
        count = min(count, 40)
    for _ in range(count):
        if counter[0] <= 0 or not budget.take(1, 30):
            return
        yield _fill(item_type, path[1:], budget, path_values, counter, field)


def _make_scalar(
    kind: inspect.Type,
    field: str,
    path_values: Mapping[str, str],
    budget: _Budget,
    counter: list[int],
    *,
    is_filled: bool,
) -> Any:
    """Return a valid scalar. Names are unique, and texts with a limit of their own are as long as it allows."""
    short = field.partition(".")[2]
    if not isinstance(VALUES_BY_FIELD.get(short, []), list) and isinstance(
        kind, inspect.StrType | inspect.IntType | inspect.EnumType
    ):
        return VALUES_BY_FIELD[short]
    match kind:
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.StrType():
            if path_values.get(field):
                return path_values[field]
            if is_filled:
                size = min(LIMITS_BY_FIELD[field].max_text_chars, budget.bytes)
                budget.bytes -= size
                return "a { b = 1 }\n"[: size if size < 12 else 12] * max(1, size // 13)
            return f"n{budget.items}-{counter[0]}"[:MAX_NAME_BYTES]
        case inspect.BytesType():
            return "aGVsbG8="
        case inspect.DateTimeType():
            return "2026-11-21T12:00:00Z"
    return None


def _put(kind: inspect.Type, path: Path, value: Any, path_values: Mapping[str, str]) -> Any:
    """Return a small body with this value at the path, in place of the list or map there."""
    if path[-1] == "[]":
        path = path[:-1]
    body = _fill(kind, (), _Budget(1_000, 100_000), path_values, [1_000], "")
    position: Any = body
    position_kind: Any = _without_none(kind)
    for step in path[:-1]:
        if step == "[]":
            position_kind = _without_none(getattr(position_kind, "item_type", None) or position_kind.value_type)
            if not position:
                return body
            position = position[0] if isinstance(position, list) else next(iter(position.values()))
            continue
        position_kind = next(_without_none(field.type) for field in position_kind.fields if field.encode_name == step)
        if not isinstance(position.get(step), dict | list) or not position[step]:
            position[step] = _fill(position_kind, ("[]",), _Budget(2, 200), path_values, [3], "")
        position = position[step]
    last = path[-1]
    if isinstance(position, dict) and last != "[]":
        position[last] = value
    elif isinstance(position, list) and position:
        position[0] = value
    elif isinstance(position, dict) and position:
        position[next(iter(position))] = value
    return body


def _without_none(kind: inspect.Type) -> inspect.Type:
    if isinstance(kind, inspect.UnionType):
        members = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        return members[0]
    return kind


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
