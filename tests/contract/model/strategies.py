"""Hypothesis strategies for all records, derived from the field types that msgspec reports.

`records(Job)` generates jobs; new records and fields need no code. Values have the right type but need not be sensible: a node may
have a negative number of cores. Each record gets only a few of its optional fields, so that examples stay small.
"""

import builtins
import datetime
import functools
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from hypothesis import strategies as st

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.allocations.task_states import TaskState

Struct = TypeVar("Struct", bound=msgspec.Struct)

MAX_OPTIONAL_FIELDS: Final = 5
MAX_MEMBERS: Final = 2

# Fields that are decoded separately. They contain encoded values of these types.
SEPARATELY_DECODED_FIELDS: Final[Mapping[tuple[type[msgspec.Struct], str], Any]] = {
    (Allocation, "allocated_resources"): AllocatedResources,
    (Allocation, "metrics"): AllocMetric,
    (Allocation, "task_states"): dict[str, TaskState],
}

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
integers = st.integers(min_value=-(2**63), max_value=2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
times = st.datetimes(
    min_value=datetime.datetime(1970, 1, 1), max_value=datetime.datetime(2200, 1, 1), timezones=st.just(datetime.UTC)
)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | texts,
    lambda inner: st.lists(inner, max_size=MAX_MEMBERS) | st.dictionaries(texts, inner, max_size=MAX_MEMBERS),
    max_leaves=4,
)


@functools.cache
def records(record: type[Struct]) -> st.SearchStrategy[Struct]:
    """Return a strategy for instances of a record type."""
    return st.deferred(lambda: _build_record_strategy(record))


def _build_record_strategy(record: type[Struct]) -> st.SearchStrategy[Struct]:
    info = msgspec.inspect.type_info(record)
    assert isinstance(info, msgspec.inspect.StructType)
    required = {field.name: _build_value_strategy(field.type) for field in info.fields if field.required}
    optional = {field.name: _build_field_strategy(record, field) for field in info.fields if not field.required}
    # Built once, not for each drawn record, because validating a strategy is slower than drawing from it.
    choices = st.sets(st.sampled_from(sorted(optional)), max_size=MAX_OPTIONAL_FIELDS) if optional else st.just(set())

    @st.composite
    def build(draw: st.DrawFn) -> Struct:
        chosen: set[str] = draw(choices)
        values = {name: draw(strategy) for name, strategy in required.items()}
        return record(**values, **{name: draw(optional[name]) for name in sorted(chosen)})

    return build()


def _build_field_strategy(record: type[msgspec.Struct], field: msgspec.inspect.Field) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field, with the real type of fields that are decoded separately."""
    decoded_type = SEPARATELY_DECODED_FIELDS.get((record, field.name))
    return _build_value_strategy(msgspec.inspect.type_info(decoded_type) if decoded_type is not None else field.type)


def _build_value_strategy(type_: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a type."""
    inspect = msgspec.inspect
    match type_:
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return integers
        case inspect.FloatType():
            return floats
        case inspect.StrType():
            return texts
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.DateTimeType():
            return times
        case inspect.EnumType():
            return st.sampled_from(list(type_.cls))
        case inspect.StructType():
            return records(type_.cls)
        case inspect.VarTupleType():
            return st.lists(_build_value_strategy(type_.item_type), max_size=MAX_MEMBERS).map(tuple)
        case inspect.DictType():
            return st.dictionaries(texts, _build_value_strategy(type_.value_type), max_size=MAX_MEMBERS)
        case inspect.UnionType():
            return st.one_of([_build_value_strategy(part) for part in type_.types])
        case inspect.AnyType() | inspect.CustomType(cls=builtins.object):
            return plain_values
    raise NotImplementedError(f"no strategy for {type_}: add one here")
