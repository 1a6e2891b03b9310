"""Reads what the docstring of a field says: a summary, details, and facts such as its unit, limits and an example.

The facts are the last paragraph. Each is a line such as `Limits: at least 0`; a longer one continues on indented lines. The
fact `Values` is followed by one indented line for each value, such as `    batch: runs to its end`.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from wharf.contract.model.times import DurationNs as _DurationNs

FACT_NAMES: Final = (
    "Type",
    "Unit",
    "Values",
    "Other values",
    "Default",
    "Limits",
    "Example",
    "Effect",
    "Deprecated",
    "Set by",
)
DURATION_ANNOTATION: Final = "DurationNs"
"""The annotation of fields that are durations. At runtime it is `int`, so only the source shows it."""
assert _DurationNs is int
_FACT: Final = re.compile(rf"({'|'.join(FACT_NAMES)}):(?: (.*))?")
_VALUE: Final = re.compile(r"(\S.*?): (.+)")


class FieldText(msgspec.Struct, frozen=True):
    """What the source says about one field of a record."""

    prose: str  # Paragraphs, separated by empty lines; the first one is the summary.
    facts: Mapping[str, str]
    values: Mapping[str, str]  # The known values, with their meanings.
    is_duration: bool

    @property
    def example(self) -> Any:  # Any JSON value.
        """The example, as JSON; a text that is not JSON stands for itself. `None` if the field has none."""
        text = self.facts.get("Example")
        return None if text is None else parse_example(text)


class DocstringError(Exception):
    """The error for a docstring that does not follow the rules of this module."""


def parse_example(text: str) -> Any:  # Any JSON value.
    """Return the value of an example: JSON, or a text without quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_field_docstring(docstring: str, *, is_duration: bool) -> FieldText:
    """Return the parts of the docstring of a field. Raises `DocstringError` if a fact is malformed."""
    *paragraphs, last = inspect.cleandoc(docstring).split("\n\n")
    if _FACT.match(last) is None:
        paragraphs, last = [*paragraphs, last], ""
    facts: dict[str, str] = {}
    values: dict[str, str] = {}
    name = ""
    for line in last.splitlines():
        match = _FACT.fullmatch(line)
        if match is not None:
            name = match[1]
            facts[name] = match[2] or ""
        elif name == "Values" and not line.startswith("        "):
            value = _VALUE.fullmatch(line.strip())
            if value is None:
                raise DocstringError(f"expected `value: meaning`, got {line!r}")
            values[value[1]] = value[2]
        elif name == "Values":
            values[list(values)[-1]] += f" {line.strip()}"
        elif line.startswith("    "):
            facts[name] += f" {line.strip()}"
        else:
            raise DocstringError(f"unknown fact {line!r}; known are {', '.join(FACT_NAMES)}")
    prose = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return FieldText(prose, facts, values, is_duration or facts.get("Type") == "duration")


def read_field_texts(record_type: type) -> dict[str, FieldText]:
    """Return the text of each field of a record class that has a docstring, by the field's Python name."""
    class_node = _get_classes(record_type.__module__)[record_type.__name__]
    texts: dict[str, FieldText] = {}
    for field, following in zip(class_node.body, [*class_node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            is_duration = DURATION_ANNOTATION in ast.unparse(field.annotation)
            try:
                text = parse_field_docstring(str(following.value.value), is_duration=is_duration)
            except DocstringError as error:
                raise DocstringError(f"{record_type.__name__}.{field.target.id}: {error}") from error
            texts[field.target.id] = text
    return texts


@cache
def _get_classes(module_name: str) -> dict[str, ast.ClassDef]:
    """Return the classes that a module defines, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module_name]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
