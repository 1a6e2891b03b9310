"""The kinds of values that the fields of a record type hold, as filters see them, by the wire names of the fields.

Kinds are derived from type annotations; no record is read here. `operators` defines which operators each kind has.
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
"""The smallest integer that a filter may name: that of 64 bits with a sign."""
MAX_INTEGER: Final = 2**64 - 1
"""The largest integer that a filter may name: that of 64 bits without a sign."""

ReadFunction: TypeAlias = Callable[[Any], Any]
"""Takes a record and returns the value of one field. The kind of the field describes the value."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The kind of a value; subclasses describe each kind.

    `is_nullable` is set for values that Nomad stores behind a pointer. Lists, maps and bytes may be null without it.
    """

    is_nullable: bool = False

    @property
    def name(self) -> str:
        """The name of the kind in error texts and documentation, such as "list"."""
        return type(self).__name__.removesuffix("Kind").lower()


@dataclass(frozen=True, slots=True)
class TextKind(ValueKind):
    """The kind of texts, and of every value that the API encodes as text.

    `format` converts a value to its text; it is `None` if the value is a string already.
    """

    values: tuple[str, ...] = ()  # The values of an enum, for documentation only: filters may compare with any text.
    format: Callable[[Any], str] | None = None

    @property
    def name(self) -> str:
        return "string"


@dataclass(frozen=True, slots=True)
class TimeKind(ValueKind):
    """The kind of times, compared as the text of the API (RFC 3339). A null time counts as missing."""


@dataclass(frozen=True, slots=True)
class BooleanKind(ValueKind):
    """The kind of values that are true or false."""

    @property
    def name(self) -> str:
        return "bool"


@dataclass(frozen=True, slots=True)
class IntegerKind(ValueKind):
    """The kind of integers from `minimum` to `maximum`, both included."""

    minimum: int = MIN_INTEGER
    maximum: int = MAX_INTEGER

    @property
    def name(self) -> str:
        return "int" if self.minimum < 0 else "uint"


@dataclass(frozen=True, slots=True)
class FloatKind(ValueKind):
    """The kind of floating-point numbers."""


@dataclass(frozen=True, slots=True)
class BytesKind(ValueKind):
    """The kind of byte sequences."""


@dataclass(frozen=True, slots=True)
class ListKind(ValueKind):
    """The kind of lists and sets. The elements of a set have no order, so they cannot be selected by index."""

    item: ValueKind = dataclasses.field(default_factory=ValueKind)
    has_order: bool = True


@dataclass(frozen=True, slots=True)
class MapKind(ValueKind):
    """The kind of maps. The keys of a map can be selected only if they are text."""

    value: ValueKind = dataclasses.field(default_factory=ValueKind)
    has_text_keys: bool = True


@dataclass(frozen=True, slots=True)
class StructKind(ValueKind):
    """The kind of a record inside a record. Its fields are computed on access, because a type may contain itself."""

    type: builtins.type = object

    @property
    def fields(self) -> Mapping[str, "FilterField"]:
        """The fields of the inner record by wire name."""
        return get_fields(self.type)


@dataclass(frozen=True, slots=True)
class UntypedKind(ValueKind):
    """The kind of values that can be any JSON value. The type is known only when a record is read."""

    @property
    def name(self) -> str:
        return "any"


@dataclass(frozen=True, slots=True)
class FilterField:
    """A field that filters can select: its kind, and the function that reads it from a record."""

    kind: ValueKind
    read: ReadFunction


@dataclass(frozen=True, slots=True)
class JoinedField:
    """A field that exists for filters only, or whose kind differs from its annotation in the record type.

    Used for related records (the job of an allocation) and for fields that are stored in an encoded form.
    """

    name: str
    type: Any  # An annotation: a type, a union or an alias.
    read: ReadFunction


class FilterSubject:
    """A record type as filters see it: its fields without the hidden ones, plus the joined ones, which filters only
    see.

    Create one instance for each filtered list and keep it: compiled filters are cached by subject.
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
    """Return the subject of a record type without hidden or joined fields."""
    return FilterSubject(record)


@functools.cache
def get_fields(record: type) -> Mapping[str, FilterField]:
    """Return the fields of a struct, dataclass or named tuple by their wire names.

    Raises `TypeError` for any other type.
    """
    info = inspect.type_info(record)
    if not isinstance(info, inspect.StructType | inspect.DataclassType | inspect.NamedTupleType):
        raise TypeError(f"{record.__name__} has no fields: records that are filtered are structs")
    unset = _find_unset_fields(record)
    return {field.encode_name: _make_field(field, can_be_unset=field.name in unset) for field in info.fields}


def get_kind(annotation: Any) -> ValueKind:
    """Return the kind of a field with this annotation."""
    return _convert_kind(inspect.type_info(annotation))


def _make_field(field: inspect.Field, *, can_be_unset: bool) -> FilterField:
    """Return a field of a record type as filters see it: its kind, and a function that reads it.

    An unset value is read as null.
    """
    kind = _convert_kind(field.type)
    getter = attrgetter(field.name)
    if not can_be_unset:
        return FilterField(kind, getter)

    def read(record: object) -> object:
        value = getter(record)
        return None if value is msgspec.UNSET else value

    return FilterField(dataclasses.replace(kind, is_nullable=True), read)


def _find_unset_fields(record: type) -> frozenset[str]:
    """Return the fields whose default is `UNSET`. Type information of msgspec does not include it."""
    names = getattr(record, "__struct_fields__", ())
    defaults = getattr(record, "__struct_defaults__", ())
    with_default = zip(reversed(names), reversed(defaults), strict=False)
    return frozenset(name for name, default in with_default if default is msgspec.UNSET)


def _convert_kind(info: inspect.Type) -> ValueKind:
    """Convert msgspec's description of a type to a kind. Types that filters do not know become `UntypedKind`."""
    match info:
        case inspect.Metadata(type=inner):
            return _convert_kind(inner)
        case inspect.StrType():
            return TextKind()
        case inspect.BoolType():
            return BooleanKind()
        case inspect.IntType(ge=minimum) if minimum is not None and minimum >= 0:
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
            return _convert_enum_kind(members)
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
            return ListKind(item=_convert_kind(item))
        case inspect.SetType(item_type=item) | inspect.FrozenSetType(item_type=item):
            return ListKind(item=_convert_kind(item), has_order=False)
        case inspect.DictType(key_type=key, value_type=value) | inspect.FrozenDictType(key_type=key, value_type=value):
            return MapKind(value=_convert_kind(value), has_text_keys=isinstance(_convert_kind(key), TextKind))
        case inspect.StructType(cls=record) | inspect.DataclassType(cls=record) | inspect.NamedTupleType(cls=record):
            return StructKind(type=record)
        case inspect.UnionType(types=types):
            return _convert_union_kind(types)
        case _:
            return UntypedKind()


def _convert_union_kind(types: tuple[inspect.Type, ...]) -> ValueKind:
    """Return the kind of `X | None` as that of `X`, made nullable. A union of several types is untyped."""
    non_null_types = [part for part in types if not isinstance(part, inspect.NoneType)]
    if len(non_null_types) != 1:
        return UntypedKind()
    return dataclasses.replace(_convert_kind(non_null_types[0]), is_nullable=len(non_null_types) < len(types))


def _convert_enum_kind(members: type[enum.Enum]) -> ValueKind:
    """Return the kind of an enum by the type of its values."""
    values = [member.value for member in members]
    if all(isinstance(value, str) for value in values):
        return TextKind(values=tuple(values), format=None if issubclass(members, str) else _get_enum_text)
    return IntegerKind() if issubclass(members, int) else UntypedKind()


def _get_enum_text(member: enum.Enum) -> str:
    return str(member.value)
