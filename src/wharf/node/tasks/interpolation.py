"""`${...}` in what a job says: the node's facts and the task's variables take the place of references.

`${node.…}`, `${attr.…}`, `${meta.…}`, a variable by its name, or `${env["NAME"]}`; `$${` stands for `${` itself.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.model.nodes.node import Node

_REFERENCE: Final = re.compile(r"\$?\$\{([^{}]*)\}")
_BY_NAME: Final = re.compile(r'env\["([^"]+)"\]')


class ReferenceValues(msgspec.Struct, frozen=True):
    """All that a reference can mean."""

    values: Mapping[str, str]

    def with_variables(self, variables: Mapping[str, str]) -> "ReferenceValues":
        return ReferenceValues({**self.values, **variables})

    def find_value(self, reference: str) -> str | None:
        by_name = _BY_NAME.fullmatch(reference)
        return self.values.get(by_name[1] if by_name else reference)


def build_reference_values(node: Node, *, region: str) -> ReferenceValues:
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


def resolve_text(text: str, facts: ReferenceValues, missing: list[str] | None = None) -> str:
    """What means nothing stays as it is, and is added to `missing`."""

    def one(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        value = facts.find_value(found[1].strip())
        if value is None:
            if missing is not None:
                missing.append(found[0])
            return found[0]
        return value

    return _REFERENCE.sub(one, text) if "${" in text else text


def resolve_document(value: object, facts: ReferenceValues, missing: list[str]) -> object:
    """In every text of a document, keys included."""
    match value:
        case str():
            return resolve_text(value, facts, missing)
        case Mapping():
            return {
                resolve_text(str(name), facts, missing): resolve_document(each, facts, missing)
                for name, each in value.items()
            }
        case Sequence() if not isinstance(value, bytes):
            return [resolve_document(each, facts, missing) for each in value]
        case _:
            return value
