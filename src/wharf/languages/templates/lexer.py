"""The lexer of templates: splits the source into literal text and actions, and actions into tokens.

A quoted text may contain braces, so an action is read token by token; its end cannot be searched for.
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
# Error texts for characters that can only start a valid token if something is missing after them.
_HINTS: Final = {
    '"': 'this text has no end: write " after it',
    "`": "this text has no end: write ` after it",
    "'": "use double quotes for text",
}


class TemplateToken(NamedTuple):
    """A token of an action. `is_after_space` distinguishes `a .b` (two operands) from `a.b` (one)."""

    kind: str  # quoted, raw, rune, number, field, dot, variable, word, assign, mark
    text: str
    offset: int
    is_after_space: bool


class SourcePiece(NamedTuple):
    """Literal text, or an action if `tokens` is not `None`."""

    text: str
    tokens: tuple[TemplateToken, ...] | None
    offset: int


def split_pieces(source: str, left: str = "{{", right: str = "}}") -> Iterator[SourcePiece]:
    """Yield the literal texts and actions of a template. Comments are dropped. Raises `TemplateError`.

    `left` and `right` are the delimiters of actions.
    """
    offset, is_trimmed = 0, False
    while offset < len(source):
        action_start = source.find(left, offset)
        text = source[offset : action_start if action_start >= 0 else len(source)]
        text = text.lstrip() if is_trimmed else text
        if action_start < 0:
            if text:
                yield SourcePiece(text, None, offset)
            return
        start = action_start + len(left)
        trims_left = source.startswith("-", start) and source[start + 1 : start + 2].isspace()
        start += trims_left
        text = text.rstrip() if trims_left else text
        if text:
            yield SourcePiece(text, None, offset)
        tokens, is_trimmed, offset = _read_action(source, action_start, start, left, right)
        if tokens is not None:
            yield SourcePiece("", tokens, action_start)


def _read_action(
    source: str, action_start: int, offset: int, left: str, right: str
) -> tuple[tuple[TemplateToken, ...] | None, bool, int]:
    """Read an action up to its end.

    Return three things: its tokens (`None` for a comment), whether the white space after the action is removed, and the
    offset after it. `action_start` is the offset of its left delimiter, `offset` that of its content.
    """
    tokens: list[TemplateToken] = []
    offset = _skip_space(source, offset)
    comment = _COMMENT.match(source, offset)
    if source.startswith("/*", offset):
        if comment is None:
            raise TemplateError("this comment has no end: write */", source, offset)
        offset = comment.end()
    while True:
        start = offset
        offset = _skip_space(source, offset)
        trims_right = source.startswith("-" + right, offset) and offset > start
        if trims_right or source.startswith(right, offset):
            return (None if comment else tuple(tokens)), trims_right, offset + trims_right + len(right)
        if offset >= len(source):
            raise TemplateError(f"{left} opens here and is not closed: write {right}", source, action_start)
        if comment:
            raise TemplateError(f"only {right} can follow a comment", source, offset)
        token_match = _TOKEN.match(source, offset)
        if token_match is None:
            raise TemplateError(_HINTS.get(source[offset], f"unexpected {source[offset]}"), source, offset)
        tokens.append(TemplateToken(str(token_match.lastgroup), token_match[0], offset, offset > start or not tokens))
        offset = token_match.end()


def _skip_space(source: str, offset: int) -> int:
    token_match = _SPACE.match(source, offset)
    return token_match.end() if token_match else offset
