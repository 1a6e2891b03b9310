"""The types of the table of blocks: arguments with their type, unit and JSON field, and blocks with their contents.

`blocks` holds the table. The schema by which a file is evaluated and the conversion to JSON are both derived from it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final

from wharf.contract.model.record import to_wire_name
from wharf.languages.hcl.schemas import FREE_FORM_BODY, MAP_BODY, BlockSchema, BodySchema

MAX_INTEGER: Final = (1 << 63) - 1
MIN_INTEGER: Final = -(1 << 63)


class ArgumentKind(StrEnum):
    """The type of an argument. Numbers and bools convert to texts, and texts such as "5" to numbers."""

    TEXT = "text"
    WHOLE = "whole number"
    BOOL = "true or false"
    DURATION = "duration"  # A text such as "1h30m", or a number of nanoseconds. JSON has nanoseconds.
    TEXTS = "list of texts"
    WHOLES = "list of whole numbers"
    TEXT_MAP = "map of texts"  # An argument. Most maps are blocks: see `BodyKind.TEXT_MAP`.


class BodyKind(StrEnum):
    """What a block contains."""

    FIELDS = "fields"  # The arguments and blocks of the table.
    TEXT_MAP = "map of texts"  # Any names, with texts as values.
    LIST_MAP = "map of lists of texts"  # Any names, with lists of texts as values.
    FREE_FORM = "free form"  # Any arguments and any blocks; types are kept.


class Storage(StrEnum):
    """Where the JSON object of a block is stored."""

    OBJECT = "object"  # The field is the object. The block may occur once.
    LIST = "list"  # The field is a list, in the order of the file.
    MAP = "map"  # The field maps labels to objects. A repeated label replaces the earlier object.


ZERO_VALUES: Final[Mapping[ArgumentKind, Any]] = {
    ArgumentKind.TEXT: "",
    ArgumentKind.WHOLE: 0,
    ArgumentKind.BOOL: False,
    ArgumentKind.DURATION: 0,
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a block: `name = value`."""

    name: str
    kind: ArgumentKind
    field: str
    """The JSON field. It may be that of another argument, such as `RTarget` of a constraint."""
    absent: Any = None
    """The value in JSON if the file does not set the argument."""
    unit: str = ""
    """The unit of a number, such as `MB`."""
    is_required: bool = False
    minimum: int = MIN_INTEGER
    maximum: int = MAX_INTEGER
    is_fraction_cut: bool = False
    """Whether a fraction is rounded toward zero. Other whole numbers refuse fractions."""
    operand: str = ""
    """In constraints and affinities: the argument sets the operand, and its value is stored in `field`."""
    deprecated: str = ""
    """What to write instead of a deprecated argument."""
    is_absent_omitted: bool = False
    """Whether the JSON lacks the field if the file lacks the argument. Nomad has no such field."""


OPTION_HINT: Final = "it is an option of the driver: write it in config { }"


@dataclass(frozen=True, slots=True, eq=False)
class BlockType:
    """A type of block at one place of a job file."""

    name: str
    field: str
    """The JSON field, or empty if the block is stored elsewhere: see `copied_to_tasks` and `becomes_group`."""
    arguments: tuple[Argument, ...] = ()
    blocks: "tuple[BlockType, ...]" = ()
    body: BodyKind = BodyKind.FIELDS
    storage: Storage = Storage.OBJECT
    label: str = ""
    """What the label of the block is, such as `name`; empty for blocks without a label."""
    label_fields: tuple[str, ...] = ()
    """The JSON fields that hold the label."""
    fixed_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """JSON fields that no argument sets, with their values."""
    has_argument_form: bool = False
    """Whether a map may also be written as an argument: `meta = { "any.key" = 1 }`."""
    is_absent_omitted: bool = False
    """Whether the JSON lacks the field if the file lacks the block. Fields of other blocks are null then."""
    short_argument: str = ""
    """The argument that a text sets. Blocks may then be written as an argument with a list of texts: `depends = ["build"]`."""
    other_field: str = ""
    """The JSON field of some of the blocks: static ports, and the default identity of a task."""
    copied_to_tasks: bool = False
    """Whether the block is a default for the tasks of the job or group, which has no such field."""
    becomes_group: bool = False
    """Whether the block becomes a group of its own."""
    deprecated: str = ""
    """What to write instead of a deprecated block."""
    options: frozenset[str] = frozenset()
    """Options of drivers, which belong into the block `config` inside of this one."""
    example: str = ""
    """Names the arguments in the error about an argument of the block's name, such as `constraint = "a = b"`."""

    @property
    def is_repeatable(self) -> bool:
        return self.storage is not Storage.OBJECT

    @property
    def short_field(self) -> str:
        """The JSON field of the argument that a text sets; empty for blocks without a short form."""
        return next((argument.field for argument in self.arguments if argument.name == self.short_argument), "")


def define_argument(
    kind: ArgumentKind, name: str, field: str = "", *, is_plain: bool = False, **options: Any
) -> Argument:
    """Return an argument. Its JSON field is named like it, if `field` is empty.

    If it is plain, its JSON field is never null: an absent argument has the zero value of its type.
    """
    absent = options.pop("absent", ZERO_VALUES[kind] if is_plain else None)
    return Argument(name, kind, field or to_wire_name(name), absent, **options)


@cache
def build_empty_object(block: BlockType) -> Mapping[str, Any]:
    """Return the JSON object of a block without any arguments and blocks."""
    empty: dict[str, Any] = dict.fromkeys(block.label_fields)
    empty |= {
        argument.field: argument.absent
        for argument in block.arguments
        if not argument.operand and not argument.is_absent_omitted
    }
    for inner in block.blocks:
        if inner.field and not inner.is_absent_omitted:
            empty[inner.field] = None
        if inner.other_field:
            empty[inner.other_field] = None
    return empty | dict(block.fixed_fields)


@cache
def build_schema(block: BlockType) -> BodySchema:
    """Return the schema by which the body of a block is evaluated."""
    if block.body is BodyKind.FREE_FORM:
        return FREE_FORM_BODY
    if block.body is not BodyKind.FIELDS:
        return MAP_BODY
    names = [argument.name for argument in block.arguments]
    names += [inner.name for inner in block.blocks if inner.has_argument_form or inner.short_argument]
    blocks = {inner.name: build_block_schema(inner) for inner in block.blocks}
    return BodySchema(tuple(names), blocks, hints=dict.fromkeys(block.options, OPTION_HINT))


def build_block_schema(block: BlockType, *, is_required: bool = False) -> BlockSchema:
    """Return the schema of a block."""
    labels = (block.label,) if block.label else ()
    return BlockSchema(build_schema(block), labels, block.is_repeatable, is_required, block.example)
