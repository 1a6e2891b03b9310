"""Hypothesis strategies for trees of any shape, and functions that write them as HCL and as JSON."""

import json

from hypothesis import strategies as st

from wharf.languages.hcl import (
    Attribute,
    Block,
    Body,
    BooleanValue,
    Expression,
    ListValue,
    NullValue,
    NumberValue,
    ObjectValue,
    TextValue,
)

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,8}", fullmatch=True).filter(
    lambda n: n not in ("true", "false", "null")
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = TEXTS.map(TextValue) | NUMBERS.map(NumberValue) | st.booleans().map(BooleanValue) | st.just(NullValue())


def _bodies(values: st.SearchStrategy[Expression], *, with_blocks: bool) -> st.SearchStrategy[Body]:
    items: st.SearchStrategy[Attribute | Block] = st.builds(Attribute, NAMES, values)
    if with_blocks:
        inner = st.lists(st.builds(Attribute, NAMES, values), max_size=3).map(lambda found: Body(tuple(found)))
        items |= st.builds(Block, NAMES, st.lists(TEXTS.map(TextValue), max_size=2).map(tuple), inner)
    return st.lists(items, max_size=4).map(lambda found: Body(tuple(found)))


def _values(*, with_blocks: bool) -> st.SearchStrategy[Expression]:
    return st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=4).map(lambda elements: ListValue(tuple(elements)))
            | _bodies(inner, with_blocks=with_blocks).map(ObjectValue)
        ),
        max_leaves=12,
    )


DOCUMENTS = _bodies(_values(with_blocks=True), with_blocks=True)
JSON_DOCUMENTS = _bodies(_values(with_blocks=False), with_blocks=False)


def as_hcl(body: Body) -> str:
    return "\n".join(_item_as_hcl(item) for item in body.items)


def _item_as_hcl(item: Attribute | Block) -> str:
    if isinstance(item, Attribute):
        return f"{item.name} = {_value_as_hcl(item.value)}"
    labels = " ".join(quoted(label.value) for label in item.labels)
    return f"{item.type} {labels} {{ {as_hcl(item.body)} }}"


def _value_as_hcl(value: Expression) -> str:
    match value:
        case TextValue(text):
            return quoted(text)
        case ListValue(elements):
            return "[" + ", ".join(_value_as_hcl(element) for element in elements) + "]"
        case ObjectValue(body):
            return "{ " + as_hcl(body) + " }"
        case _:
            return _scalar(value)


def as_json(body: Body) -> str:
    return (
        "{"
        + ",".join(f"{json.dumps(a.name)}:{_value_as_json(a.value)}" for a in body.items if isinstance(a, Attribute))
        + "}"
    )


def _value_as_json(value: Expression) -> str:
    match value:
        case TextValue(text):
            return json.dumps(text)
        case ListValue(elements):
            return "[" + ",".join(_value_as_json(element) for element in elements) + "]"
        case ObjectValue(body):
            return as_json(body)
        case _:
            return _scalar(value)


def _scalar(value: Expression) -> str:
    match value:
        case NumberValue(number):
            return repr(number)
        case BooleanValue(boolean):
            return "true" if boolean else "false"
        case _:
            return "null"


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
