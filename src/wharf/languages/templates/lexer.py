"""The words of a template: text as it stands, and the tokens of each action between the braces.

A text in quotes may hold braces, so actions are read token by token until their end, and not searched for it.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from wharf.languages.templates.errors import TemplateError

_TOKEN: Final = re.compile(
    r"""(?P<quoted>"(?:[^"\\\n]|\\.)*")|(?P<raw>`[^`]*`)|(?P<rune>'(?:[^'\\\n]|\\.[^'\n]*)')"""
    r"""|(?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?))(?![\w.])"""
    r"""|(?P<field>\.[^\W\d]\w*)|(?P<dot>\.)|(?P<variable>\$\w*)|(?P<word>[^\W\d]\w*)"""
    r"""|(?P<assign>:?=)|(?P<mark>[()|,])"""
)
_SPACE: Final = re.compile(r"\s*")
_COMMENT: Final = re.compile(r"/\*(?s:.*?)\*/")
# What one may have meant; the place is told anyway.
_HINTS: Final = {
    '"': "this text in quotes has no end",
    "`": "this text has no end: write ` after it",
    "'": "use double quotes for text",
}


class TemplateToken(NamedTuple):
    kind: str  # quoted, raw, rune, number, field, dot, variable, word, assign, mark
    text: str
    offset: int
    # `a .b` are two operands, `a.b` is one.
    is_after_space: bool


class SourcePiece(NamedTuple):
    """Text as it stands, or (where `tokens` is not None) an action."""

    text: str
    tokens: tuple[TemplateToken, ...] | None
    offset: int


def split_pieces(source: str, left: str = "{{", right: str = "}}") -> Iterator[SourcePiece]:
    """Raises TemplateError."""
    at, is_trimmed = 0, False
    while at < len(source):
        opens = source.find(left, at)
        text = source[at : opens if opens >= 0 else len(source)]
        text = text.lstrip() if is_trimmed else text
        if opens < 0:
            if text:
                yield SourcePiece(text, None, at)
            return
        begin = opens + len(left)
        trims_before = source.startswith("-", begin) and source[begin + 1 : begin + 2].isspace()
        begin += trims_before
        text = text.rstrip() if trims_before else text
        if text:
            yield SourcePiece(text, None, at)
        tokens, is_trimmed, at = _read_action(source, opens, begin, left, right)
        if tokens is not None:
            yield SourcePiece("", tokens, opens)


def _read_action(
    source: str, opens: int, at: int, left: str, right: str
) -> tuple[tuple[TemplateToken, ...] | None, bool, int]:
    """The tokens, or None for a remark; whether the space after it goes; the place after it."""
    tokens: list[TemplateToken] = []
    at = _space_end(source, at)
    remark = _COMMENT.match(source, at)
    if source.startswith("/*", at):
        if remark is None:
            raise TemplateError("this remark has no end: write */", source, at)
        at = remark.end()
    while True:
        begin = at
        at = _space_end(source, at)
        trims = source.startswith("-" + right, at) and at > begin
        if trims or source.startswith(right, at):
            return (None if remark else tuple(tokens)), trims, at + trims + len(right)
        if at >= len(source):
            raise TemplateError(f"{left} opens here and is not closed: write {right}", source, opens)
        if remark:
            raise TemplateError(f"after a remark comes {right}, and nothing else", source, at)
        found = _TOKEN.match(source, at)
        if found is None:
            raise TemplateError(_HINTS.get(source[at], f"{source[at]} means nothing here"), source, at)
        tokens.append(TemplateToken(str(found.lastgroup), found[0], at, at > begin or not tokens))
        at = found.end()


def _space_end(source: str, at: int) -> int:
    found = _SPACE.match(source, at)
    return found.end() if found else at
