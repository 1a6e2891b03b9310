"""Forms that were refused: what a person has entered, and each mistake at its field."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

_LIST_START: Final = re.compile(r"[0-9]+ errors? occurred:\n")
"""The beginning of a list of problems in an error of the API; each has a line of its own."""
_ITEM: Final = "\t* "


class FormView(msgspec.Struct, frozen=True):
    """The values of a form, and its mistakes by field."""

    values: Mapping[str, str]
    errors: Mapping[str, str] = {}
    problem: str = ""
    """The mistakes that belong to no field."""

    @property
    def is_refused(self) -> bool:
        return bool(self.errors or self.problem)


FieldHints = Sequence[tuple[str, str]]
"""Pairs of a part of the text of a mistake and the field that it is about; empty: the whole form. The first that is found counts."""


def build_refused_form(values: Mapping[str, str], text: str, hints: FieldHints) -> FormView:
    """Return a form that the API has refused with this text, with each mistake at the field that the hints name."""
    errors: dict[str, str] = {}
    others: list[str] = []
    for problem in split_problems(text):
        field = next((field for part, field in hints if part in problem), "")
        if field:
            errors[field] = f"{errors[field]}; {problem}" if field in errors else problem
        else:
            others.append(problem)
    return FormView(dict(values), errors, "; ".join(others))


def split_problems(text: str) -> tuple[str, ...]:
    """Return the problems in an error of the API: those of its list, or the whole text."""
    start = _LIST_START.search(text)
    if start is None:
        return (text.strip(),)
    return tuple(line.removeprefix(_ITEM).strip() for line in text[start.end() :].splitlines() if line.strip())
