"""What can be filtered: the kinds of values that a record type holds, by the names of the wire.

A kind says what a value is like and how it is read; which operators it has is told in `operators`. Nothing here looks
at a record.
"""

import builtins
import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import inspect

MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1

ReadFunction: TypeAlias = Callable[
    [Any], Any
]  # From a record of any type to a value of any type: kinds tell what they are.


@dataclass(frozen=True, slots=True)
class ValueKind:
    """`may_be_null`: only for what the reference holds by a pointer; lists, maps and bytes may always be null."""

    is_nullable: bool = False

    @property
    def name(self) -> str:
        return type(self).__name__.removesuffix("Kind").lower()


@dataclass(frozen=True, slots=True)
class TextKind(ValueKind):
    """Text, and everything that the wire shows as text. `show` makes the text where the value is none."""

    values: tuple[str, ...] = ()  # Of an enum, for the documentation: any text may be compared with.
    format: Callable[[Any], str] | None = None

    @property
    def name(self) -> str:
        return "string"


@dataclass(frozen=True, slots=True)
class TimeKind(ValueKind):
    """A time, compared as the text that the wire shows (RFC 3339). Where there is none, it is not present."""


@dataclass(frozen=True, slots=True)
class BooleanKind(ValueKind):
    @property
    def name(self) -> str:
        return "bool"


@dataclass(frozen=True, slots=True)
class IntegerKind(ValueKind):
    minimum: int = MIN_INTEGER
    maximum: int = MAX_INTEGER

    @property
    def name(self) -> str:
        return "int" if self.minimum < 0 else "uint"


@dataclass(frozen=True, slots=True)
class FloatKind(ValueKind):
    pass


@dataclass(frozen=True, slots=True)
class BytesKind(ValueKind):
    pass


@dataclass(frozen=True, slots=True)
class ListKind(ValueKind):
    item: ValueKind = dataclasses.field(default_factory=ValueKind)
    has_order: bool = True  # A set has none, and so no indexes.


@dataclass(frozen=True, slots=True)
class MapKind(ValueKind):
    value: ValueKind = dataclasses.field(default_factory=ValueKind)
    has_text_keys: bool = True


@dataclass(frozen=True, slots=True)
class StructKind(ValueKind):
    """A record inside a record. Its fields are looked up when they are asked for: types may hold themselves."""

    type: builtins.type = object

    @property
    def fields(self) -> Mapping[str, "FilterField"]:
        return get_fields(self.type)


@dataclass(frozen=True, slots=True)
class UntypedKind(ValueKind):
    """Any JSON: what it is, each record tells."""

    @property
    def name(self) -> str:
        return "any"


@dataclass(frozen=True, slots=True)
class FilterField:
    kind: ValueKind
    read: ReadFunction


@dataclass(frozen=True, slots=True)
class JoinedField:
    """A field that records of the type have for filters only, or that is another kind than the type tells.

    For what a record refers to (the job of an allocation), and for fields that are stored in a form of their own.
    """

    name: str
    type: Any  # Whatever may annotate a field: a type, a union, an alias.
    read: ReadFunction


class FilterSubject:
    """A type of records as filters see it: its fields, less the hidden ones, more the joined ones.

    Make one for each thing that is filtered, once: compiled filters are kept for each subject.
    """

    def __init__(
        self, record: type, *, hidden: frozenset[str] = frozenset(), joined: tuple[JoinedField, ...] = ()
    ) -> None:
        fields = dict(get_fields(record))
        unknown = sorted(hidden - fields.keys())
        if unknown:
            raise ValueError(f"{record.__name__} has no field {', '.join(unknown)} to hide")
        self.name = record.__name__
        self.fields: Mapping[str, FilterField] = {
            **{name: field for name, field in fields.items() if name not in hidden},
            **{field.name: FilterField(get_kind(field.type), field.read) for field in joined},
        }


@functools.cache
def get_filter_subject(record: type) -> FilterSubject:
    """The subject of a type that hides and joins nothing."""
    return FilterSubject(record)


@functools.cache
def get_fields(record: type) -> Mapping[str, FilterField]:
    """The fields of a struct or dataclass, by their names on the wire."""
    info = inspect.type_info(record)
    if not isinstance(info, inspect.StructType | inspect.DataclassType | inspect.NamedTupleType):
        raise TypeError(f"{record.__name__} has no fields: records that are filtered are structs")
    unset = _unset_fields(record)
    return {field.encode_name: _field(field, may_be_unset=field.name in unset) for field in info.fields}


def get_kind(annotation: Any) -> ValueKind:
    """The kind of whatever may annotate a field."""
    return _kind(inspect.type_info(annotation))


def _field(field: inspect.Field, *, may_be_unset: bool) -> FilterField:
    kind = _kind(field.type)
    get = attrgetter(field.name)
    if not may_be_unset:
        return FilterField(kind, get)

    def read(record: object) -> object:
        value = get(record)
        return None if value is msgspec.UNSET else value

    return FilterField(dataclasses.replace(kind, is_nullable=True), read)


def _unset_fields(record: type) -> frozenset[str]:
    """Fields that may be unset, which msgspec does not tell: they are unset unless they are given."""
    names = getattr(record, "__struct_fields__", ())
    defaults = getattr(record, "__struct_defaults__", ())
    with_default = zip(reversed(names), reversed(defaults), strict=False)
    return frozenset(name for name, default in with_default if default is msgspec.UNSET)


def _kind(info: inspect.Type) -> ValueKind:
    match info:
        case inspect.Metadata(type=inner):
            return _kind(inner)
        case inspect.StrType():
            return TextKind()
        case inspect.BoolType():
            return BooleanKind()
        case inspect.IntType(ge=least) if least is not None and least >= 0:
            return IntegerKind(minimum=0)
        case inspect.IntType():
            return IntegerKind()
        case inspect.FloatType():
            return FloatKind()
        case inspect.DateTimeType():
            return TimeKind()
        case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
            return BytesKind()
        case inspect.EnumType(cls=members):
            return _enum_kind(members)
        case inspect.LiteralType(values=values) if all(isinstance(value, str) for value in values):
            return TextKind(values=tuple(sorted(str(value) for value in values)))
        case (
            inspect.UUIDType()
            | inspect.DecimalType()
            | inspect.DateType()
            | inspect.TimeType()
            | inspect.TimeDeltaType()
        ):
            return TextKind(format=msgspec.to_builtins)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return ListKind(item=_kind(item))
        case inspect.SetType(item_type=item) | inspect.FrozenSetType(item_type=item):
            return ListKind(item=_kind(item), has_order=False)
        case inspect.DictType(key_type=key, value_type=value) | inspect.FrozenDictType(key_type=key, value_type=value):
            return MapKind(value=_kind(value), has_text_keys=isinstance(_kind(key), TextKind))
        case inspect.StructType(cls=record) | inspect.DataclassType(cls=record) | inspect.NamedTupleType(cls=record):
            return StructKind(type=record)
        case inspect.UnionType(types=types):
            return _union_kind(types)
        case _:
            return UntypedKind()


def _union_kind(types: tuple[inspect.Type, ...]) -> ValueKind:
    others = [part for part in types if not isinstance(part, inspect.NoneType)]
    if len(others) != 1:
        return UntypedKind()
    return dataclasses.replace(_kind(others[0]), is_nullable=len(others) < len(types))


def _enum_kind(members: type[enum.Enum]) -> ValueKind:
    values = [member.value for member in members]
    if all(isinstance(value, str) for value in values):
        return TextKind(values=tuple(values), format=None if issubclass(members, str) else _value_of)
    return IntegerKind() if issubclass(members, int) else UntypedKind()


def _value_of(member: enum.Enum) -> str:
    return str(member.value)
