"""Resolves `${...}` references in texts of a job.

A reference names a value of the node (`${node.…}`, `${attr.…}`, `${meta.…}`), a text of an earlier step
(`${steps.GROUP.NAME}`), or a variable of the task, by name or as `${env["NAME"]}`. `$${` stands for a literal `${`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.model.jobs.step_outputs import REFERENCE_PREFIX
from wharf.contract.model.nodes.node import Node

_REFERENCE: Final = re.compile(r"\$?\$\{([^{}]*)\}")
_ENVIRONMENT_REFERENCE: Final = re.compile(r'env\["([^"]+)"\]')
MAX_RESOLVED_CHARACTERS: Final = 131_072
"""Limit of one text after its references were replaced; protects the memory of the node.

Linux limits one argument or variable of a program to the same number of bytes.
"""
MAX_TOTAL_CHARACTERS: Final = 1_048_576
"""Limit of all texts of a task with references, after these were replaced; protects the memory of the node."""
MAX_PLACE_CHARACTERS: Final = 300
"""Limit of the name of a text in an error message; limits the size of a task event."""
MAX_MISSING_REFERENCES: Final = 20
"""How many unknown references one error message lists; limits the size of a task event."""


class ResolutionLimit:
    """Limits the results of texts that are resolved together, such as all texts of a task."""

    def __init__(self, max_total: int = MAX_TOTAL_CHARACTERS) -> None:
        self.problem = ""
        """What is wrong with the first text that exceeds a limit or cannot be used; empty if there is none."""
        self._max_total = max_total
        self._total = 0

    def find_maximum(self) -> int:
        """Return how many characters the next text may have."""
        return min(MAX_RESOLVED_CHARACTERS, self._max_total - self._total)

    def add_size(self, size: int) -> None:
        """Count a text that was resolved."""
        self._total += size

    def report_excess(self, place: str) -> None:
        """Store that the text at `place` in the job exceeds the limit."""
        place = place[:MAX_PLACE_CHARACTERS]
        if self.find_maximum() < MAX_RESOLVED_CHARACTERS:
            subject, limit = f"together with the texts before it, {place} has", self._max_total
        else:
            subject, limit = f"{place} has", MAX_RESOLVED_CHARACTERS
        self.report_problem(
            f"{subject} more than {limit} characters after its references are replaced: refer to shorter values, or "
            "write the values to a file with a template"
        )

    def report_problem(self, problem: str) -> None:
        """Store what is wrong with a resolved text, unless a problem is stored already."""
        self.problem = self.problem or problem


class ReferenceValues(msgspec.Struct, frozen=True):
    """The values of `${...}` references, by reference name."""

    values: Mapping[str, str]

    def with_variables(self, variables: Mapping[str, str]) -> "ReferenceValues":
        """Return a copy with additional variables, which override values of the same name."""
        return ReferenceValues({**self.values, **variables})

    def with_step_outputs(self, outputs: Mapping[str, Mapping[str, str]] | None) -> "ReferenceValues":
        """Return a copy with the texts of earlier steps, such as `steps.build.version`."""
        if not outputs:
            return self
        return self.with_variables(
            {
                f"{REFERENCE_PREFIX}{step}.{name}": text
                for step, texts in outputs.items()
                for name, text in texts.items()
            }
        )

    def find_value(self, reference: str) -> str | None:
        """Return the value of a reference, such as `node.class` or `env["HOME"]`; `None` if it is unknown."""
        environment_reference = _ENVIRONMENT_REFERENCE.fullmatch(reference)
        return self.values.get(environment_reference[1] if environment_reference else reference)


def build_reference_values(node: Node, *, region: str) -> ReferenceValues:
    """Return the values of references to the node: its ids, attributes and metadata."""
    values = {
        "node.unique.id": node.id,
        "node.unique.name": node.name,
        "node.datacenter": node.datacenter,
        "node.region": region,
        "node.class": node.node_class,
        "node.pool": node.node_pool,
    }
    values |= {f"attr.{name}": value for name, value in (node.attributes or {}).items()}
    values |= {f"meta.{name}": value for name, value in (node.meta or {}).items()}
    return ReferenceValues(values)


def resolve_text(
    text: str,
    reference_values: ReferenceValues,
    missing: list[str] | None = None,
    limit: ResolutionLimit | None = None,
    place: str = "a text",
) -> str:
    """Return the text with all `${...}` references replaced by their values.

    An unknown reference stays unchanged and is added to `missing`, if given. `$${` becomes `${`. A text whose result
    exceeds a limit is returned unchanged, and reported to `limit`; `place` names the text in the job.
    """
    if "${" not in text:
        return text
    limit = limit or ResolutionLimit()
    maximum = limit.find_maximum()
    pieces: list[str] = []
    size = position = 0
    for match in _REFERENCE.finditer(text):
        piece = _find_replacement(match, reference_values, missing)
        pieces += (text[position : match.start()], piece)
        size += match.start() - position + len(piece)
        position = match.end()
        if size > maximum:
            break
    pieces.append(text[position:])
    size += len(text) - position
    if size > maximum:
        limit.report_excess(place)
        return text
    limit.add_size(size)
    return "".join(pieces)


def _find_replacement(match: re.Match[str], reference_values: ReferenceValues, missing: list[str] | None) -> str:
    """Return the text that replaces one reference."""
    if match[0].startswith("$$"):
        return match[0][1:]
    value = reference_values.find_value(match[1].strip())
    if value is None:
        if missing is not None:
            missing.append(match[0])
        return match[0]
    return value


def resolve_document(
    value: object,
    reference_values: ReferenceValues,
    missing: list[str],
    limit: ResolutionLimit | None = None,
    place: str = "config",
) -> object:
    """Return a copy of the document with all `${...}` references resolved, in keys and values.

    Unknown references are added to `missing`. `limit` limits all texts together; `place` names the document.
    """
    limit = limit or ResolutionLimit()
    match value:
        case str():
            return resolve_text(value, reference_values, missing, limit, place)
        case Mapping():
            return {
                resolve_text(str(name), reference_values, missing, limit, f"a key of {place}"): resolve_document(
                    item, reference_values, missing, limit, f"{place}.{str(name)[:100]}"
                )
                for name, item in value.items()
            }
        case Sequence() if not isinstance(value, bytes):
            return [
                resolve_document(item, reference_values, missing, limit, f"{place}[{number}]")
                for number, item in enumerate(value)
            ]
        case _:
            return value


def find_zero_byte(value: object, place: str = "config") -> str:
    """Return which text of the document contains a zero byte, and how to fix that; empty if none does."""
    match value:
        case str():
            if "\0" not in value:
                return ""
            return f"{place[:MAX_PLACE_CHARACTERS]} contains a zero byte, which no program can receive: remove it"
        case Mapping():
            items = [(f"{place}.{str(name)[:100]}", item) for name, item in value.items()]
        case Sequence() if not isinstance(value, bytes):
            items = [(f"{place}[{number}]", item) for number, item in enumerate(value)]
        case _:
            return ""
    return next(filter(None, (find_zero_byte(item, name) for name, item in items)), "")


_SHELL_EXPANSION: Final = re.compile(r"\$\{(?:#\w|\w+[:#%/^,=?+-])")
"""References that only shells know, such as `${X:-y}` and `${#X}`."""


def describe_missing(missing: Sequence[str]) -> str:
    """Return a sentence about unknown references; it lists at most `MAX_MISSING_REFERENCES` of them."""
    listed = ", ".join(reference[:100] for reference in missing[:MAX_MISSING_REFERENCES])
    more = len(missing) - MAX_MISSING_REFERENCES
    text = f"unknown reference: {listed}" + (f" and {more} more" if more > 0 else "")
    shell = next((each for each in missing if _SHELL_EXPANSION.match(each)), None)
    if shell is None:
        return text
    return f"{text}; to leave a reference to the shell, write $${shell[1:100]} in YAML and JSON, or $$${shell[1:100]} in HCL"
