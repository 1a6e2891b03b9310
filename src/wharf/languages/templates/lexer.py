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
    '"': ("this text has no end", 'write " after it'),
    "`": ("this text has no end", "write ` after it"),
    "'": ("use double quotes for text", ""),
}


class TemplateToken(NamedTuple):
    """A token of an action. `is_after_space` distinguishes `a .b` (two operands) from `a.b` (one)."""

    kind: str  # quoted, raw, rune, number, field, dot, variable, word, assign, mark
    text: str
    offset: int
    is_after_space: bool


class SourcePiece(NamedTuple):
    """Literal text, or an action if `tokens` is not `None`.

    `error` is the error of an action that cannot be read. Its tokens are those before the error.
    """

    text: str
    tokens: tuple[TemplateToken, ...] | None
    offset: int
    error: TemplateError | None = None


def split_pieces(source: str, left: str = "{{", right: str = "}}") -> Iterator[SourcePiece]:
    """Yield the literal texts and actions of a template. Comments are dropped.

    `left` and `right` are the delimiters of actions. After an error, the text is read on behind the end of the action.
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
        tokens: list[TemplateToken] = []
        error = None
        try:
            is_comment, is_trimmed, offset = _read_action(source, action_start, start, left, right, tokens)
        except TemplateError as caught:
            error, is_comment, is_trimmed = caught, False, False
            offset = _find_next_action(source, caught.offset, action_start, left, right)
        if not is_comment:
            yield SourcePiece("", tuple(tokens), action_start, error)


def _find_next_action(source: str, error_offset: int, action_start: int, left: str, right: str) -> int:
    """Return where to read on after an error in an action: behind its end, or at the action inside it if it has no end."""
    end = source.find(right, max(error_offset, action_start + len(left)))
    inner = source.find(left, action_start + len(left), end if end >= 0 else len(source))
    if inner >= 0:
        return inner
    return end + len(right) if end >= 0 else len(source)


def _read_action(
    source: str, action_start: int, offset: int, left: str, right: str, tokens: list[TemplateToken]
) -> tuple[bool, bool, int]:
    """Read an action up to its end, and add its tokens to `tokens`.

    Return three things: whether it is a comment, whether the white space after the action is removed, and the offset
    after it. `action_start` is the offset of its left delimiter, `offset` that of its content. Raises `TemplateError`.
    """
    offset = _skip_space(source, offset)
    comment = _COMMENT.match(source, offset)
    if source.startswith("/*", offset):
        if comment is None:
            raise TemplateError("this comment has no end", source, offset, "write */")
        offset = comment.end()
    while True:
        start = offset
        offset = _skip_space(source, offset)
        trims_right = source.startswith("-" + right, offset) and offset > start
        if trims_right or source.startswith(right, offset):
            return comment is not None, trims_right, offset + trims_right + len(right)
        if offset >= len(source) or source.startswith(left, offset):
            raise TemplateError(f"{left} opens here and is not closed", source, action_start, f"write {right}")
        if comment:
            raise TemplateError(f"only {right} can follow a comment", source, offset)
        token_match = _TOKEN.match(source, offset)
        if token_match is None:
            problem, fix = _HINTS.get(source[offset], (f"unexpected {source[offset]}", ""))
            raise TemplateError(problem, source, offset, fix)
        tokens.append(TemplateToken(str(token_match.lastgroup), token_match[0], offset, offset > start or not tokens))
        offset = token_match.end()


def _skip_space(source: str, offset: int) -> int:
    token_match = _SPACE.match(source, offset)
    return token_match.end() if token_match else offset


def find_token_end(source: str, offset: int, left: str) -> int:
    """Return the offset after the token, or after the left delimiter, that begins at an offset."""
    if source.startswith(left, offset):
        return offset + len(left)
    token = _TOKEN.match(source, offset)
    return token.end() if token is not None else min(offset + 1, len(source))
