"""Which arguments and blocks a body may have. The JSON form and dynamic blocks cannot be read without this knowledge."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BodySchema:
    """The arguments and blocks of a body.

    `is_open` allows any argument, as in a map of texts. `is_free_form` allows any argument and any block.
    """

    attributes: Collection[str] = ()
    blocks: Mapping[str, "BlockSchema"] = field(default_factory=dict)
    is_open: bool = False
    is_free_form: bool = False
    hints: Mapping[str, str] = field(default_factory=dict)
    """Where names belong that are often written here by mistake."""

    def allows_argument(self, name: str) -> bool:
        return self.is_open or self.is_free_form or name in self.attributes


@dataclass(frozen=True, slots=True)
class BlockSchema:
    """A type of block. `labels` are the names of its labels, for messages.

    `example` names the arguments of a block that is often written as an argument.
    """

    body: BodySchema
    labels: tuple[str, ...] = ()
    is_repeatable: bool = False
    is_required: bool = False
    example: str = ""


MAP_BODY = BodySchema(is_open=True)
"""A block that holds any arguments and no blocks."""
FREE_FORM_BODY = BodySchema(is_free_form=True)
"""A block that holds anything."""


def find_owners(root: BodySchema, name: str, *, is_block: bool) -> list[str]:
    """Return the types of blocks that allow an argument or a block of this name, without repetitions."""
    return list(dict.fromkeys(_list_owners(root, name, is_block, set(), "the top level")))


def _list_owners(body: BodySchema, name: str, is_block: bool, visited: set[int], owner: str) -> Iterator[str]:
    if id(body) in visited:
        return
    visited.add(id(body))
    if name in (body.blocks if is_block else body.attributes):
        yield owner
    for kind, block in body.blocks.items():
        yield from _list_owners(block.body, name, is_block, visited, kind)


def list_item_names(root: BodySchema) -> set[str]:
    """Return the names of all arguments and blocks of a schema."""
    names: set[str] = set()
    found = [root]
    visited: set[int] = set()
    while found:
        body = found.pop()
        if id(body) not in visited:
            visited.add(id(body))
            names.update(body.attributes, body.blocks)
            found += [block.body for block in body.blocks.values()]
    return names
