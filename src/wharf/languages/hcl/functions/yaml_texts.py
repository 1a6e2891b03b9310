"""The functions `yamlencode` and `yamldecode`."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from wharf.languages.hcl.budget import MAX_VALUE_DEPTH, Budget
from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.conversions import to_text
from wharf.languages.hcl.numerals import NumberError, format_number, parse_number
from wharf.languages.hcl.values import (
    MAPPINGS,
    SEQUENCES,
    HclList,
    HclObject,
    HclSet,
    HclTuple,
    Value,
    measure_value,
    normalize_text,
)

DECODER_STEPS: Final = 500
"""The steps to create a decoder."""
STEPS_PER_CHARACTER: Final = 12
"""The steps to decode one character: the decoder reads about 80 KB in a second."""
_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_BOOLS: Final = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_NULLS: Final = frozenset(("", "~", "null", "Null", "NULL"))
_WHOLE: Final = re.compile(r"[-+]?[0-9]+")
_BASED: Final = re.compile(r"([-+]?)(?:0x([0-9a-fA-F]+)|0o([0-7]+)|0b([01]+))")
_REAL: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt]|[ \t]+)([0-9]{1,2}):([0-9]{2}):([0-9]{2}(?:\.[0-9]+)?)[ \t]*(Z|[-+][0-9]{1,2}(?::?[0-9]{2})?)?"
)
_PLAIN_LINES: Final = re.compile(
    r"[\t\n\x20-\x7e\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*"
)
# What the decoder reads as a line break, or not at all.
_UNPRINTABLE: Final = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
MAX_DIGITS: Final = 1_000
_MERGE_KEY: Final = "<<"


# -- encode


def encode_yaml(value: Value, budget: Budget) -> str:
    """Return the value as YAML with sorted, quoted keys."""
    budget.use_steps(measure_value(value) >> 1)
    lines: list[str] = []
    _append_lines(value, "", "", lines, budget)
    return "\n".join(lines) + "\n"


def _append_lines(value: Value, lead: str, indentation: str, lines: list[str], budget: Budget) -> None:
    """Append the lines of a value. `lead` starts its first line, and `indentation` the others."""
    if isinstance(value, MAPPINGS) and value.entries:
        for key in sorted(value.entries):
            item = value.entries[key]
            name = f"{lead}{_quote(key)}:"
            if isinstance(item, SEQUENCES) and item.items:
                lines.append(name)
                _append_lines(item, indentation, indentation, lines, budget)
            elif isinstance(item, MAPPINGS) and item.entries:
                lines.append(name)
                _append_lines(item, indentation + "  ", indentation + "  ", lines, budget)
            else:
                _append_scalar(item, f"{name} ", indentation, lines, budget)
            lead = indentation
    elif isinstance(value, SEQUENCES) and value.items:
        for item in value.items:
            _append_lines(item, f"{lead}- ", indentation + "  ", lines, budget)
            lead = indentation
    else:
        _append_scalar(
            value, lead, indentation.removesuffix("  ") if lead.endswith("- ") else indentation, lines, budget
        )


def _quote(text: str) -> str:
    """Return a text in double quotes with escapes."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def _append_scalar(value: Value, lead: str, indentation: str, lines: list[str], budget: Budget) -> None:
    """Append a text, number, bool, null or empty collection."""
    budget.use_bytes(len(lead) + measure_value(value))
    if isinstance(value, str):
        if "\n" in value and _PLAIN_LINES.fullmatch(value) and value.strip("\n"):
            body = value.rstrip("\n")
            ends = len(value) - len(body)
            style = "-" if ends == 0 else "" if ends == 1 else "+"
            has_leading_blank = value[0] in " \n\t"
            lines.append(f"{lead}|{'2' if has_leading_blank else ''}{style}")
            text_lines = body.split("\n") + [""] * (ends - 1)
            budget.use_bytes(len(text_lines) * (len(indentation) + 2))
            lines += [f"{indentation}  {line}" if line else "" for line in text_lines]
        else:
            lines.append(lead + _quote(value))
    elif value is None:
        lines.append(f"{lead}null")
    elif isinstance(value, bool):
        lines.append(f"{lead}{'true' if value else 'false'}")
    elif isinstance(value, int | Fraction):
        lines.append(lead + format_number(value))
    else:
        lines.append(f"{lead}{'[]' if isinstance(value, HclTuple | HclList | HclSet) else '{}'}")


# -- decode


def decode_yaml(context: CallContext, text: str) -> Value:
    """Return the value of a YAML document. Raises `FunctionError`."""
    from ruamel.yaml import YAML  # Loading the library takes long, and few documents use it.
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    context.budget.use_steps(DECODER_STEPS + STEPS_PER_CHARACTER * len(text))
    try:
        return _ValueBuilder(context.budget).build(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise FunctionError(f"not YAML{place}: {error.problem or error.context}", argument=0) from None
    except (YAMLError, ValueError) as error:
        raise FunctionError(
            f"not YAML: {str(error).splitlines()[0] if str(error) else 'unreadable'}", argument=0
        ) from None


class _OpenCollection:
    """A list or map whose end is still to come."""

    __slots__ = ("anchor", "is_map", "is_merge", "items", "key")

    def __init__(self, anchor: str | None, *, is_map: bool) -> None:
        self.anchor = anchor
        self.is_map = is_map
        self.items: list[Value] = []
        self.key: str | None = None
        self.is_merge = False
        """Whether the key is `<<` without quotes, which merges other maps."""


class _ValueBuilder:
    """Builds a value from the events of the parser, without recursion."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._anchors: dict[str, Value] = {}
        self._stack: list[_OpenCollection] = []
        self._documents: list[Value] = []
        self._merged: list[list[tuple[str, Value]]] = []
        self._entries: list[dict[str, Value]] = []

    def build(self, events: Iterator[Any]) -> Value:
        """Return the value of the only document. Raises `FunctionError`."""
        handlers: dict[str, Callable[[Any], None]] = {
            "ScalarEvent": self._on_scalar,
            "AliasEvent": self._on_alias,
            "SequenceStartEvent": self._on_start,
            "MappingStartEvent": self._on_start,
            "SequenceEndEvent": self._on_end,
            "MappingEndEvent": self._on_end,
        }
        for event in events:
            handler = handlers.get(type(event).__name__)
            if handler is not None:
                self._budget.use_steps(10)
                handler(event)
        if len(self._documents) > 1:
            raise FunctionError("the text holds several documents, and only one is allowed", argument=0)
        return self._documents[0] if self._documents else None

    def _on_start(self, event: Any) -> None:
        if len(self._stack) >= MAX_VALUE_DEPTH - 1:
            raise FunctionError(f"nested more than {MAX_VALUE_DEPTH} deep", argument=0)
        is_map = type(event).__name__ == "MappingStartEvent"
        self._stack.append(_OpenCollection(event.anchor, is_map=is_map))
        self._entries.append({})
        self._merged.append([])

    def _on_end(self, _: Any) -> None:
        opened = self._stack.pop()
        entries, merged = self._entries.pop(), self._merged.pop()
        value: Value
        if opened.is_map:
            for key, item in merged:
                entries.setdefault(key, item)
            value = HclObject(entries)
        else:
            value = HclTuple(tuple(opened.items))
        self._add(value, opened.anchor)

    def _on_alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise FunctionError(f'no anchor "{str(event.anchor)[:80]}" exists', argument=0)
        self._add(self._anchors[event.anchor], None)

    def _on_scalar(self, event: Any) -> None:
        is_key = bool(self._stack) and self._stack[-1].is_map and self._stack[-1].key is None
        tag = str(event.tag) if event.tag is not None else ""
        is_plain = event.implicit[0] and not event.style
        if is_key and is_plain:
            self._stack[-1].is_merge = event.value == _MERGE_KEY
            self._add(event.value, event.anchor)
            return
        self._add(
            _resolve_scalar(event.value, tag.removeprefix(_TAG_PREFIX).removeprefix("!!"), is_plain), event.anchor
        )

    def _add(self, value: Value, anchor: str | None) -> None:
        """Add a value to the innermost collection."""
        self._budget.use_bytes(16)
        if anchor:
            self._anchors[anchor] = value
        if not self._stack:
            self._documents.append(value)
            return
        opened = self._stack[-1]
        if not opened.is_map:
            opened.items.append(value)
        elif opened.key is None:
            if value is None or isinstance(value, (*SEQUENCES, *MAPPINGS)):
                raise FunctionError("a key is a text, not a list or map", argument=0)
            opened.key = to_text(value)
        elif opened.is_merge:
            opened.key = None
            opened.is_merge = False
            sources = value.items if isinstance(value, SEQUENCES) else (value,)
            for source in sources:
                if not isinstance(source, MAPPINGS):
                    raise FunctionError("the key << merges maps only", argument=0)
                self._budget.use_bytes(16 * len(source.entries))
                self._merged[-1] += source.entries.items()
        else:
            self._entries[-1][opened.key] = value
            opened.key = None


def _resolve_scalar(text: str, tag: str, is_plain: bool) -> Value:
    """Return the value of a scalar. Only text without quotes and tags is resolved by its form."""
    if tag == "str" or (not tag and not is_plain) or tag == "!":
        return normalize_text(text)
    if tag and tag not in ("int", "float", "bool", "null", "timestamp"):
        raise FunctionError(f"the tag !!{tag[:40]} is not supported", argument=0)
    if (not tag or tag == "null") and text in _NULLS:
        return None
    if (not tag or tag == "bool") and text in _BOOLS:
        return _BOOLS[text]
    if not tag or tag in ("int", "float"):
        number = _resolve_number(text)
        if number is not None:
            return number
    if not tag or tag == "timestamp":
        return normalize_text(_resolve_time(text))
    raise FunctionError(f"a value with the tag !!{tag} has another form", argument=0)


def _resolve_number(text: str) -> Value:
    """Return the number of a text, or `None` if it is another text."""
    if len(text) > MAX_DIGITS:
        return None
    try:
        if _WHOLE.fullmatch(text):
            return parse_number(text)
        based = _BASED.fullmatch(text)
        if based is not None:
            digits, base = next((d, b) for d, b in ((based[2], 16), (based[3], 8), (based[4], 2)) if d)
            return parse_number(based[1] + str(int(digits, base)))
        if _NOT_FINITE.fullmatch(text):
            raise FunctionError("infinity and NaN are no numbers here", argument=0)
        if _REAL.fullmatch(text):
            sign = "-" if text.startswith("-") else ""
            whole, point, rest = text.lstrip("+-").partition(".")
            if not point:
                return parse_number(sign + whole)
            rest = rest if rest[:1].isdigit() else f"0{rest}"
            return parse_number(f"{sign}{whole or '0'}.{rest}")
    except NumberError as error:
        raise FunctionError(str(error), argument=0) from None
    return None


def _resolve_time(text: str) -> str:
    """Return a date or time in the form of RFC 3339, and any other text unchanged."""
    if _DATE.fullmatch(text):
        return f"{text}T00:00:00Z"
    match = _TIME.fullmatch(text)
    if match is None:
        return text
    zone = match[5] or "Z"
    if zone != "Z":
        hours, _, minutes = zone[1:].partition(":")
        if not minutes and len(hours) > 2:
            hours, minutes = hours[:-2], hours[-2:]
        zone = f"{zone[0]}{hours.rjust(2, '0')}:{minutes or '00'}"
    return f"{match[1]}T{match[2].rjust(2, '0')}:{match[3]}:{match[4]}{zone}"


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = dict(
    (
        define_function("yamlencode", "value!:any", lambda context, value: encode_yaml(value, context.budget)),
        define_function("yamldecode", "s:text", decode_yaml),
    )
)
