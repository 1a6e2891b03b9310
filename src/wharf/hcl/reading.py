"""What a reader asks of a tree: blocks of a name, texts, lists of texts, in whichever way they were written.

These all say the same and are told apart nowhere above:

    namespace "web" { policy = "read" }                 a block with its label
    namespace { web { policy = "read" } }               blocks in a block
    namespace = { web = { policy = "read" } }           objects; JSON can say it only so
    namespace = [{ web = [{ policy = "read" }] }]       lists of objects
"""

from collections.abc import Iterable, Iterator

from wharf.hcl.errors import NotAsExpected
from wharf.hcl.tree import Attribute, Block, Body, Expression, List, Null, Object, Text, name_of


def blocks(body: Body, type: str, *, labels: int) -> Iterator[Block]:
    """The blocks of that name with as many labels, in the order of the text. Raises where something else has the name."""
    for item in body.items:
        if name_of(item) == type:
            yield from _unfolded(item, type, (), labels)


def _unfolded(item: Attribute | Block, type: str, found: tuple[Text, ...], wanted: int) -> Iterator[Block]:
    """The blocks that an item stands for, of which `found` are the labels so far."""
    for block in _as_blocks(item, type, is_label=bool(found)):
        labels = (*found, *block.labels)
        if len(labels) > wanted:
            at = labels[wanted].at
            raise NotAsExpected(at, f'{type} takes {_count(wanted)}; "{labels[wanted].value[:80]}" is one too many')
        if len(labels) == wanted:
            yield Block(type, labels, block.body, item.at)
            continue
        for inner in block.body.items:
            yield from _unfolded(inner, type, (*labels, Text(name_of(inner), inner.at)), wanted)


def _as_blocks(item: Attribute | Block, type: str, *, is_label: bool) -> Iterable[Block]:
    if isinstance(item, Block):
        return (item,)
    match item.value:
        case Null():
            return ()
        case Object(body):
            return (Block(item.name, (), body, item.at),)
        case List(elements) if all(isinstance(element, Object) for element in elements):
            return [
                Block(item.name, (), element.body, element.at) for element in elements if isinstance(element, Object)
            ]
        case _:
            name = item.name[:80]
            mend = f'{type} "label" {{ ... }}' if is_label else f"{type} {{ ... }}"
            raise NotAsExpected(item.at, f'expected a block, found "{name} = ..."; write {mend}')


def attributes(body: Body, name: str) -> list[Attribute]:
    """The attributes of that name; those that are null are not there. Raises where a block has the name."""
    found = []
    for item in body.items:
        if name_of(item) != name:
            continue
        if isinstance(item, Block):
            raise NotAsExpected(item.at, f"{name} is no block; write {name} = ...")
        if not isinstance(item.value, Null):
            found.append(item)
    return found


def text_of(value: Expression, what: str) -> Text:
    if not isinstance(value, Text):
        raise NotAsExpected(value.at, f"{what} is a text; write it in quotes")
    return value


def texts_of(value: Expression, what: str) -> tuple[Text, ...]:
    """A list of texts; a single one stands for a list of one, as in older documents."""
    if isinstance(value, Text):
        return (value,)
    if not isinstance(value, List):
        raise NotAsExpected(value.at, f'{what} is a list of texts; write ["...", "..."]')
    return tuple(text_of(element, f"each of {what}") for element in value.elements)


def _count(labels: int) -> str:
    return {0: "no label", 1: "one label"}.get(labels, f"{labels} labels")
