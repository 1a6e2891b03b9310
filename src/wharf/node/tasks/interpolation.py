"""Resolves `${...}` references in texts of a job.

A reference names a value of the node (`${node.…}`, `${attr.…}`, `${meta.…}`) or a variable of the task, by name or as
`${env["NAME"]}`. `$${` stands for a literal `${`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.model.nodes.node import Node

_REFERENCE: Final = re.compile(r"\$?\$\{([^{}]*)\}")
_ENVIRONMENT_REFERENCE: Final = re.compile(r'env\["([^"]+)"\]')


class ReferenceValues(msgspec.Struct, frozen=True):
    """The values of `${...}` references, by reference name."""

    values: Mapping[str, str]

    def with_variables(self, variables: Mapping[str, str]) -> "ReferenceValues":
        """Return a copy with additional variables, which override values of the same name."""
        return ReferenceValues({**self.values, **variables})

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


def resolve_text(text: str, reference_values: ReferenceValues, missing: list[str] | None = None) -> str:
    """Return the text with all `${...}` references replaced by their values.

    An unknown reference stays unchanged and is added to `missing`, if given. `$${` becomes `${`.
    """

    def replace_reference(match: re.Match[str]) -> str:
        """Return the text that replaces one reference."""
        if match[0].startswith("$$"):
            return match[0][1:]
        value = reference_values.find_value(match[1].strip())
        if value is None:
            if missing is not None:
                missing.append(match[0])
            return match[0]
        return value

    return _REFERENCE.sub(replace_reference, text) if "${" in text else text


def resolve_document(value: object, reference_values: ReferenceValues, missing: list[str]) -> object:
    """Return a copy of the document with all `${...}` references resolved, in keys and values.

    Unknown references are added to `missing`.
    """
    match value:
        case str():
            return resolve_text(value, reference_values, missing)
        case Mapping():
            return {
                resolve_text(str(name), reference_values, missing): resolve_document(item, reference_values, missing)
                for name, item in value.items()
            }
        case Sequence() if not isinstance(value, bytes):
            return [resolve_document(item, reference_values, missing) for item in value]
        case _:
            return value
