"""Reads type expressions, such as `list(object({ name = string }))`, from the syntax tree of an expression."""

from typing import Final

from wharf.languages.hcl.call_nodes import CallNode
from wharf.languages.hcl.loops import TemplateNode
from wharf.languages.hcl.nodes import LiteralNode, ObjectNode, SyntaxNode, TupleNode
from wharf.languages.hcl.reader import ParseError
from wharf.languages.hcl.references import ReferenceNode
from wharf.languages.hcl.values import (
    ANY,
    BOOL,
    NUMBER,
    STRING,
    CollectionType,
    ObjectType,
    TupleType,
    ValueType,
)
from wharf.languages.suggestions import find_nearest_name

_PRIMITIVES: Final = {"string": STRING, "number": NUMBER, "bool": BOOL}
_COLLECTIONS: Final = ("list", "set", "map")
_WORDS: Final = (*_PRIMITIVES, *_COLLECTIONS, "tuple", "object")
_TYPES_FIX: Final = (
    "the types are string, number, bool, list(T), set(T), map(T), tuple([T, ...]) and object({ name = T, ... })"
)


def read_type(node: SyntaxNode, *, allows_any: bool = False) -> ValueType:
    """Return the type that an expression describes. Raises `ParseError`."""
    match node:
        case ReferenceNode(root=root, steps=[]):
            return _read_word(node, root, allows_any=allows_any)
        case CallNode():
            return _read_constructor(node, allows_any=allows_any)
        case LiteralNode(value=str()) | TemplateNode():
            raise _make_error(node, "a type is written without quotes", _TYPES_FIX)
        case _:
            raise _make_error(node, "expected a type", _TYPES_FIX)


def _read_word(node: SyntaxNode, word: str, *, allows_any: bool) -> ValueType:
    """Return the type for a word such as `string`."""
    if word in _PRIMITIVES:
        return _PRIMITIVES[word]
    if word == "any":
        if allows_any:
            return ANY
        raise _make_error(node, "the type any is not offered", "leave the type argument out to accept any value")
    if word in _COLLECTIONS:
        raise _make_error(node, f"the type {word} needs the type of its items", f"write {word}(string)")
    if word == "tuple":
        raise _make_error(node, "the type tuple needs the types of its items", "write tuple([string, number])")
    if word == "object":
        raise _make_error(node, "the type object needs its attributes", "write object({ name = string })")
    nearest = find_nearest_name(word, _WORDS)
    raise _make_error(
        node, f'no type "{word[:80]}" exists', f"did you mean {nearest}?" if nearest is not None else _TYPES_FIX
    )


def _read_constructor(node: CallNode, *, allows_any: bool) -> ValueType:
    """Return the type for a constructor such as `list(string)`."""
    name = node.name
    if name == "optional":
        raise _make_error(node, "optional attributes are not offered", "write the type alone, and give every attribute")
    if name not in (*_COLLECTIONS, "tuple", "object"):
        if name in _PRIMITIVES or name == "any":
            raise _make_error(node, f"the type {name} takes no arguments", f"write {name}")
        nearest = find_nearest_name(name, _WORDS)
        raise _make_error(
            node, f'no type "{name[:80]}" exists', f"did you mean {nearest}?" if nearest is not None else _TYPES_FIX
        )
    if len(node.arguments) != 1 or node.is_spread:
        raise _make_error(node, f"the type {name} takes one argument", _TYPES_FIX)
    argument = node.arguments[0]
    if name in _COLLECTIONS:
        return CollectionType(name, read_type(argument, allows_any=allows_any))
    if name == "tuple":
        if not isinstance(argument, TupleNode):
            raise _make_error(argument, "the type tuple takes a list of types", "write tuple([string, number])")
        return TupleType(tuple([read_type(item, allows_any=allows_any) for item in argument.items]))
    if not isinstance(argument, ObjectNode):
        raise _make_error(argument, "the type object takes its attributes", "write object({ name = string })")
    attributes: dict[str, ValueType] = {}
    for key, item in argument.entries:
        if not isinstance(key, str):
            raise _make_error(key, "an attribute of an object type has a plain name", "write object({ name = string })")
        attributes[key] = read_type(item, allows_any=allows_any)
    return ObjectType(attributes)


def _make_error(node: SyntaxNode, message: str, fix: str) -> ParseError:
    return ParseError(message, node.start, node.end, fix)
