"""Converts the value of an argument to JSON by the type in the table, and says what is wrong with a value that does not fit."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from wharf.contract.model.times import DurationError, parse_duration_ns
from wharf.job_files.hcl.block_types import MAX_INTEGER, MIN_INTEGER, Argument, ArgumentKind
from wharf.languages.hcl.amounts import UNIT_NAMES, explain_number, find_duration, find_number
from wharf.languages.hcl.conversions import ConversionError, to_bool, to_number_value, to_text
from wharf.languages.hcl.diagnostics import SourceRange
from wharf.languages.hcl.documents import EvaluatedAttribute
from wharf.languages.hcl.nodes import LiteralNode
from wharf.languages.hcl.numerals import format_number
from wharf.languages.hcl.template_texts import TemplateText
from wharf.languages.hcl.values import MAPPINGS, SEQUENCES, Value, describe_value

MAX_SHOWN_CHARS: Final = 40
"""A message shows a longer text only as "a text"."""
_DESCRIPTIONS: Final[Mapping[ArgumentKind, str]] = {
    ArgumentKind.TEXT: "a text",
    ArgumentKind.BOOL: "true or false",
    ArgumentKind.DURATION: 'a duration such as "30s" or "1h30m"',
    ArgumentKind.TEXTS: "a list of texts",
    ArgumentKind.WHOLES: "a list of whole numbers",
    ArgumentKind.TEXT_MAP: "a map of texts",
}


TEXT_MAP_TYPE: Final = "map(string)"
TEXT_LIST_TYPE: Final = "list(string)"
_TYPE_NAMES: Final[Mapping[ArgumentKind, str]] = {
    ArgumentKind.TEXT: "string",
    ArgumentKind.WHOLE: "number",
    ArgumentKind.BOOL: "bool",
    ArgumentKind.TEXTS: TEXT_LIST_TYPE,
    ArgumentKind.WHOLES: "list(number)",
    ArgumentKind.TEXT_MAP: TEXT_MAP_TYPE,
}
"""The types that values of arguments are converted to."""


class ItemError(ConversionError):
    """An item of a list or map does not fit. `position` is its position or key."""

    def __init__(self, position: int | str, value: Value) -> None:
        name = f"item {position}" if isinstance(position, int) else f'"{position[:MAX_SHOWN_CHARS]}"'
        super().__init__(f"{name} is {describe_value(value)}")
        self.position = position


def convert_argument(argument: Argument, value: Value) -> Any:
    """Return the value of an argument as JSON has it. A template stays as it is. Raises `ConversionError`."""
    if isinstance(value, TemplateText):
        return _convert_template(argument, value)
    return _CONVERTERS[argument.kind](argument, value)


def _convert_template(argument: Argument, template: TemplateText) -> str:
    kind = _TYPE_NAMES.get(argument.kind)
    if kind is None:
        return str(template)
    if argument.kind is ArgumentKind.BOOL and argument.operand:  # The field of a comparison is a text.
        return template.convert(kind, "string")
    return template.convert(kind)


def _convert_text(argument: Argument, value: Value) -> str:  # noqa: ARG001 (a converter)
    return to_text(value)


def _convert_bool(argument: Argument, value: Value) -> bool:  # noqa: ARG001 (a converter)
    return to_bool(value)


def _convert_whole(argument: Argument, value: Value) -> int:
    number = to_number_value(value)
    if isinstance(number, Fraction):
        if not argument.is_fraction_cut:
            raise ConversionError("a fraction")
        number = int(number)
    if not argument.minimum <= number <= argument.maximum:
        raise ConversionError("out of range")
    return number


def _convert_duration(argument: Argument, value: Value) -> int:  # noqa: ARG001 (a converter)
    if isinstance(value, str):
        try:
            return parse_duration_ns(value)
        except DurationError as error:
            raise ConversionError(str(error)) from None
    number = to_number_value(value)
    if isinstance(number, Fraction) or not MIN_INTEGER <= number <= MAX_INTEGER:
        raise ConversionError("not a number of nanoseconds")
    return number


def _convert_texts(argument: Argument, value: Value) -> list[Any]:  # noqa: ARG001 (a converter)
    return convert_text_list(value)


def _convert_wholes(argument: Argument, value: Value) -> list[Any]:
    if not isinstance(value, SEQUENCES):
        raise ConversionError("not a list")
    converted: list[Any] = []
    for position, item in enumerate(value.items):
        try:
            converted.append(
                item.convert("number") if isinstance(item, TemplateText) else _convert_whole(argument, item)
            )
        except ConversionError:
            raise ItemError(position, item) from None
    return converted


def convert_text(value: Value) -> str:
    """Return a value as a text. A template stays one. Raises `ConversionError`."""
    return value.convert("string") if isinstance(value, TemplateText) else to_text(value)


def convert_text_list(value: Value) -> list[str]:
    """Return the texts of a list. Raises `ConversionError`."""
    if not isinstance(value, SEQUENCES):
        raise ConversionError("not a list", "put the value in [ ]")
    texts = []
    for position, item in enumerate(value.items):
        try:
            texts.append(convert_text(item))
        except ConversionError:
            raise ItemError(position, item) from None
    return texts


def _convert_text_map(argument: Argument, value: Value) -> dict[str, str]:  # noqa: ARG001 (a converter)
    if not isinstance(value, MAPPINGS):
        raise ConversionError("not a map")
    texts = {}
    for key, item in value.entries.items():
        try:
            texts[key] = convert_text(item)
        except ConversionError:
            raise ItemError(key, item) from None
    return texts


_CONVERTERS: Final[Mapping[ArgumentKind, Callable[[Argument, Value], Any]]] = {
    ArgumentKind.TEXT: _convert_text,
    ArgumentKind.WHOLE: _convert_whole,
    ArgumentKind.BOOL: _convert_bool,
    ArgumentKind.DURATION: _convert_duration,
    ArgumentKind.TEXTS: _convert_texts,
    ArgumentKind.WHOLES: _convert_wholes,
    ArgumentKind.TEXT_MAP: _convert_text_map,
}


def describe_mismatch(
    argument: Argument, attribute: EvaluatedAttribute, error: ConversionError
) -> tuple[SourceRange, str, str]:
    """Return the place, the message and the fix for a value that does not fit its argument."""
    expected = describe_argument(argument)
    if isinstance(error, ItemError):
        place = attribute.get_item_place(error.position)
        reason = "a part of the value is of another type" if attribute.is_sensitive else error.message
        return place, f'"{argument.name}" takes {expected}, and {reason}', ""
    fix = _find_fix(argument, attribute) or error.fix
    return attribute.place, f'"{argument.name}" takes {expected}, not {describe_found(attribute)}', fix


def describe_argument(argument: Argument) -> str:
    """Return what an argument takes, such as `a whole number of megabytes`."""
    if argument.kind is not ArgumentKind.WHOLE:
        return _DESCRIPTIONS[argument.kind]
    unit = f" of {UNIT_NAMES[argument.unit]}" if argument.unit else ""
    if argument.minimum == MIN_INTEGER and argument.maximum == MAX_INTEGER:
        return f"a whole number{unit}"
    if argument.maximum == MAX_INTEGER:
        return f"a whole number{unit} of at least {argument.minimum}"
    return f"a whole number{unit} from {argument.minimum} to {argument.maximum}"


def describe_found(attribute: EvaluatedAttribute) -> str:
    """Return a literal value as it is written, and only the type of any other: it may come from a secret variable."""
    value = attribute.value
    if isinstance(attribute.node, LiteralNode):
        if isinstance(value, str) and len(value) <= MAX_SHOWN_CHARS and value.isprintable():
            return f'"{value}"'
        if isinstance(value, int | Fraction) and not isinstance(value, bool):
            text = format_number(value)
            return text if len(text) <= MAX_SHOWN_CHARS else "such a large number"
    if isinstance(value, Fraction):
        return "a fraction"
    return describe_value(value)


def _find_fix(argument: Argument, attribute: EvaluatedAttribute) -> str:
    """Return what to write instead of a literal value, or an empty text."""
    value = attribute.value
    if not isinstance(attribute.node, LiteralNode):
        return 'a text such as "30s", or a number of nanoseconds' if argument.kind is ArgumentKind.DURATION else ""
    match argument.kind:
        case ArgumentKind.TEXTS if isinstance(value, str) and len(value) <= MAX_SHOWN_CHARS:
            return f'write {argument.name} = ["{value}"]'
        case ArgumentKind.WHOLE if isinstance(value, str) and (number := find_number(value, argument.unit)) is not None:
            return f"write {argument.name} = {number}"
        case ArgumentKind.WHOLE if isinstance(value, str | Fraction):
            return explain_number(value if isinstance(value, str) else format_number(value), argument.unit)
        case ArgumentKind.DURATION:
            return f"write {argument.name} = {_suggest_duration(value)}"
        case _:
            return ""


def _suggest_duration(value: Value) -> str:
    """Return a duration that a literal probably means."""
    if isinstance(value, str):
        if value.isascii() and value.isdecimal() and len(value) <= 12:
            return f'"{value}s"'
        duration = find_duration(value)
        if duration is not None and duration != value:
            return f'"{duration}"'
    return '"30s", with a unit: ns, us, ms, s, m or h'
