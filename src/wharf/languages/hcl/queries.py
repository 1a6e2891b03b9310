"""What a reader asks of a tree: blocks of a name, texts, lists of texts, in whichever way they were written.

These all say the same and are told apart nowhere above:

    namespace "web" { policy = "read" }                 a block with its label
    namespace { web { policy = "read" } }               blocks in a block
    namespace = { web = { policy = "read" } }           objects; JSON can say it only so
    namespace = [{ web = [{ policy = "read" }] }]       lists of objects
"""

from collections.abc import Iterable, Iterator

from wharf.languages.hcl.errors import HclStructureError
from wharf.languages.hcl.tree import (
    Attribute,
    Block,
    Body,
    Expression,
    ListValue,
    NullValue,
    ObjectValue,
    TextValue,
    get_item_name,
)


def find_blocks(body: Body, block_type: str, *, label_count: int) -> Iterator[Block]:
    """The blocks of that name with as many labels, in the order of the text. Raises where something else has the name."""
    for item in body.items:
        if get_item_name(item) == block_type:
            yield from _unfolded(item, block_type, (), label_count)


def _unfolded(item: Attribute | Block, type: str, found: tuple[TextValue, ...], wanted: int) -> Iterator[Block]:
    """The blocks that an item stands for, of which `found` are the labels so far."""
    for block in _as_blocks(item, type, is_label=bool(found)):
        labels = (*found, *block.labels)
        if len(labels) > wanted:
            at = labels[wanted].location
            raise HclStructureError(at, f'{type} takes {_count(wanted)}; "{labels[wanted].value[:80]}" is one too many')
        if len(labels) == wanted:
            yield Block(type, labels, block.body, item.location)
            continue
        for inner in block.body.items:
            yield from _unfolded(inner, type, (*labels, TextValue(get_item_name(inner), inner.location)), wanted)


def _as_blocks(item: Attribute | Block, type: str, *, is_label: bool) -> Iterable[Block]:
    if isinstance(item, Block):
        return (item,)
    match item.value:
        case NullValue():
            return ()
        case ObjectValue(body):
            return (Block(item.name, (), body, item.location),)
        case ListValue(elements) if all(isinstance(element, ObjectValue) for element in elements):
            return [
                Block(item.name, (), element.body, element.location)
                for element in elements
                if isinstance(element, ObjectValue)
            ]
        case _:
            name = item.name[:80]
            mend = f'{type} "label" {{ ... }}' if is_label else f"{type} {{ ... }}"
            raise HclStructureError(item.location, f'expected a block, found "{name} = ..."; write {mend}')


def find_attributes(body: Body, name: str) -> list[Attribute]:
    """The attributes of that name; those that are null are not there. Raises where a block has the name."""
    found = []
    for item in body.items:
        if get_item_name(item) != name:
            continue
        if isinstance(item, Block):
            raise HclStructureError(item.location, f"{name} is no block; write {name} = ...")
        if not isinstance(item.value, NullValue):
            found.append(item)
    return found


def require_text(value: Expression, description: str) -> TextValue:
    if not isinstance(value, TextValue):
        raise HclStructureError(value.location, f"{description} is a text; write it in quotes")
    return value


def require_texts(value: Expression, description: str) -> tuple[TextValue, ...]:
    """A list of texts; a single one stands for a list of one, as in older documents."""
    if isinstance(value, TextValue):
        return (value,)
    if not isinstance(value, ListValue):
        raise HclStructureError(value.location, f'{description} is a list of texts; write ["...", "..."]')
    return tuple(require_text(element, f"each of {description}") for element in value.elements)


def _count(labels: int) -> str:
    return {0: "no label", 1: "one label"}.get(labels, f"{labels} labels")
