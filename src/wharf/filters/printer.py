"""From tree to text: one canonical form, which parses to the same tree.

Values are always quoted; parentheses stand only where they are needed.
"""

import re
from typing import Final

from wharf.filters.tree import And, Collection, Expression, Match, Not, Or, Selector, Value

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/]*")
_DOTTED: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/]*|[0-9]+")
# Fields whose name alone could be read as a keyword where they stand: written as a pointer.
_LIKE_KEYWORDS: Final = frozenset({"not", "contains", "matches", "in", "is", "any", "all"})
# The characters that a quoted string can not hold as they are.
_ESCAPED: Final = {ord("\\"): "\\\\", ord('"'): "\\x22", ord("\n"): "\\n"}


def print_tree(node: Expression) -> str:
    match node:
        case Match(selector, operator, value):
            shown = f"{_print_selector(selector)} {operator.value}"
            return shown if value is None else f"{shown} {_print_value(value)}"
        case Not(operand):
            return f"not {_grouped(operand, And | Or | Collection)}"
        case And(operands):
            return " and ".join(_grouped(operand, And | Or | Collection) for operand in operands)
        case Or(operands):
            *some, last = operands
            shown_last = _grouped(last, Or)
            return " or ".join([*(_grouped(operand, Or | Collection) for operand in some), shown_last])
        case Collection():
            names = node.member or f"{node.key or '_'}, {node.value or '_'}"
            collected = _print_selector(node.selector)
            return f"{node.quantifier.value} {collected} as {names} {{ {print_tree(node.body)} }}"


def _grouped(node: Expression, kinds: type | object) -> str:
    shown = print_tree(node)
    return f"({shown})" if isinstance(node, kinds) else shown  # type: ignore[arg-type]  # unions of classes are allowed


def _print_selector(selector: Selector) -> str:
    first, *others = selector.parts
    if not _NAME.fullmatch(first) or (not others and first in _LIKE_KEYWORDS):
        escaped = (part.replace("~", "~0").replace("/", "~1") for part in selector.parts)
        return f'"/{"/".join(escaped)}"'
    return first + "".join(f".{part}" if _DOTTED.fullmatch(part) else f"[{_print_string(part)}]" for part in others)


def _print_value(value: Value) -> str:
    return _print_string(value.text)


def _print_string(text: str) -> str:
    return f'"{text.translate(_ESCAPED)}"'
