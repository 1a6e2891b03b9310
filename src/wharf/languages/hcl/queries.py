"""Finds blocks, attributes and texts in a tree, whichever of the equivalent notations the document uses.

These documents are equivalent, and callers cannot tell which one was written:

    namespace "web" { policy = "read" }                 a block with its label
    namespace { web { policy = "read" } }               blocks in a block
    namespace = { web = { policy = "read" } }           objects, the only notation in JSON
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
    """Yield the blocks of this type that have this number of labels, in the order of the text.

    Raises `HclStructureError` if an item of that name is not a block or has more labels.
    """
    for item in body.items:
        if get_item_name(item) == block_type:
            yield from _expand_item(item, block_type, (), label_count)


def _expand_item(
    item: Attribute | Block, block_type: str, labels_so_far: tuple[TextValue, ...], label_count: int
) -> Iterator[Block]:
    """Yield the blocks that an item stands for. `labels_so_far` are those of the items around it."""
    for block in _list_blocks(item, block_type, is_label=bool(labels_so_far)):
        labels = (*labels_so_far, *block.labels)
        if len(labels) > label_count:
            location = labels[label_count].location
            raise HclStructureError(
                location,
                f'{block_type} takes {_format_label_count(label_count)}; remove "{labels[label_count].value[:80]}"',
            )
        if len(labels) == label_count:
            yield Block(block_type, labels, block.body, item.location)
            continue
        for nested_item in block.body.items:
            yield from _expand_item(
                nested_item,
                block_type,
                (*labels, TextValue(get_item_name(nested_item), nested_item.location)),
                label_count,
            )


def _list_blocks(item: Attribute | Block, block_type: str, *, is_label: bool) -> Iterable[Block]:
    """Return the blocks of one item without looking inside: itself, or one for each object that is assigned to it."""
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
            fix = f'{block_type} "label" {{ ... }}' if is_label else f"{block_type} {{ ... }}"
            raise HclStructureError(item.location, f'expected a block, found "{name} = ..."; write {fix}')


def find_attributes(body: Body, name: str) -> list[Attribute]:
    """Return the attributes of that name whose value is not null. Raises `HclStructureError` if it names a block."""
    attributes = []
    for item in body.items:
        if get_item_name(item) != name:
            continue
        if isinstance(item, Block):
            raise HclStructureError(item.location, f"{name} is not a block; write {name} = ...")
        if not isinstance(item.value, NullValue):
            attributes.append(item)
    return attributes


def require_text(value: Expression, description: str) -> TextValue:
    """Return the value if it is a text. Raises `HclStructureError` that starts with the description of the value."""
    if not isinstance(value, TextValue):
        raise HclStructureError(value.location, f"{description} must be a text; write it in quotes")
    return value


def require_texts(value: Expression, description: str) -> tuple[TextValue, ...]:
    """Return the texts of a list. A single text counts as a list of one, as in older documents.

    Raises `HclStructureError` if the value or an element is not a text. Its text starts with `description`.
    """
    if isinstance(value, TextValue):
        return (value,)
    if not isinstance(value, ListValue):
        raise HclStructureError(value.location, f'{description} must be a list of texts; write ["...", "..."]')
    return tuple(require_text(element, f"each element of {description}") for element in value.elements)


def _format_label_count(labels: int) -> str:
    return {0: "no label", 1: "one label"}.get(labels, f"{labels} labels")
