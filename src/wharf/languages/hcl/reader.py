"""Reads one source from the start: blanks, comments, names, and what stands at an offset, for error messages.

All patterns are possessive (`*+`, `(?>`): they never go back, so reading takes linear time.
"""

import re
from typing import Final

from wharf.languages.hcl.diagnostics import SourceFile

MAX_NESTING: Final = 100
"""How deep blocks, brackets, templates and directives may nest together: limits the stack."""
_COMMENT: Final = r"/\*(?>[^*]++|\*(?!/))*+\*/"
MAX_NODES: Final = 100_000
"""Limit of the blocks, operands and templates of a source, and of the values of a JSON document: to parse and evaluate each takes up
to 13 µs. Arguments and items of lists that are plain literals do not count, because they take 2 µs.
"""
ANY_BLANK_PATTERN: Final = rf"(?>[ \t\n]++|\r\n|#[^\n]*+|//[^\n]*+|{_COMMENT})*+"
LINE_BLANK_PATTERN: Final = rf"(?>[ \t]++|{_COMMENT})*+"
NAME_PATTERN: Final = r"[^\W\d][\w\-\u0300-\u036f]*+"

LINE_BLANK: Final = re.compile(LINE_BLANK_PATTERN)
"""Blanks and comments that do not end a line."""
ANY_BLANK: Final = re.compile(ANY_BLANK_PATTERN)
"""Blanks, comments and line ends."""
NAME: Final = re.compile(NAME_PATTERN)
LINE_END: Final = re.compile(r"(?:(?:#|//)[^\n]*+)?+(?:\r?\n|\Z)")
"""An optional comment and the end of the line."""

LINE_MODE: Final = 0
"""Line ends end the expression: the value of an argument of a body."""
OBJECT_MODE: Final = 1
"""A line end ends the value of an object, unless an operator continues it."""
ANY_MODE: Final = 2
"""Line ends are blanks: inside brackets and templates."""


_CHARACTER_NAMES: Final = {
    "": "the end of the file",
    "\n": "the end of the line",
    "\r": "the end of the line",
    '"': "a quote",
    "\u00a0": "a no-break space",
    "\ufeff": "a byte order mark",
    "\u200b": "a zero-width space",
}
_CHARACTER_FIXES: Final = {
    "\u00a0": "replace it by a space",
    "\u202f": "replace it by a space",
    "\u3000": "replace it by a space",
    "\u200b": "delete it",
    "\ufeff": "delete it",
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", 'replace the typographic quote by "'),
    **dict.fromkeys("\u2018\u2019'`", 'texts are in double quotes: "..."'),
    ";": "delete it: arguments end with their line, and items are separated by commas",
}


class ParseError(Exception):
    """The text does not follow the grammar. `related` is a second place: its offsets and a description."""

    def __init__(
        self, message: str, start: int, end: int, fix: str = "", related: tuple[int, int, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end
        self.fix = fix
        self.related = related


class FinalError(ParseError):
    """An error after which no further errors are searched: the rest of the text cannot be understood."""


class OpenEndedError(ParseError):
    """A value without an end on its line, such as a string without a closing quote. The lines below may belong to it."""


class MalformedNumberError(ParseError):
    """A text that begins with digits, such as `256MB`."""


def make_bare_text_error(text: str, start: int, end: int) -> ParseError:
    """Return the error for a text without quotes, such as `/bin/true`."""
    shown = f"{text[:80]}{'...' if len(text) > 80 else ''}"
    return ParseError(f"{shown} is a text, and texts are in quotes", start, end, f'write "{shown}"')


class SourceReader:
    """The state of a parser: the source and the current position."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.text = source.text
        self.pos = 0
        self.depth = 0
        self.node_count = 0
        """The nodes of expressions so far: what one evaluation of the source costs."""
        self._counted = 0

    def enter(self, start: int) -> None:
        """Count one more level of nesting. Raises `ParseError`."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise FinalError(f"nested more than {MAX_NESTING} deep", start, start + 1, "write it flatter")

    def count_node(self, start: int) -> None:
        """Count a block, an operand, a template or a value of JSON. Raises `ParseError`."""
        self._counted += 1
        if self._counted > MAX_NODES:
            raise FinalError(
                f"the file has more than {MAX_NODES:,} blocks and expressions", start, start + 1,
                "write shorter lists, or a for expression or dynamic block that repeats one of them",
            )  # fmt: skip

    def skip_line_blank(self) -> None:
        self.pos = LINE_BLANK.match(self.text, self.pos).end()  # type: ignore[union-attr]  # it always matches

    def skip_any_blank(self) -> None:
        self.pos = ANY_BLANK.match(self.text, self.pos).end()  # type: ignore[union-attr]  # it always matches

    def starts_with(self, text: str) -> bool:
        return self.text.startswith(text, self.pos)

    def make_unexpected_error(
        self, expected: str, fix: str = "", related: tuple[int, int, str] | None = None
    ) -> ParseError:
        """Return an error at the position: what was expected, what was found, and how to fix it."""
        text, pos = self.text, self.pos
        if text.startswith("/*", pos):
            return FinalError("this comment has no end", pos, pos + 2, "write */ at its end")
        character = text[pos : pos + 1]
        for mark in ("{{", "[[", "<%"):
            if text.startswith(mark, pos) and (mark != "[[" or not self._is_list_start(pos)):
                return ParseError(
                    f'expected {expected}, found "{mark}"', pos, pos + 2,
                    f"the file has {mark} of another template language: render it first", related,
                )  # fmt: skip
        name = NAME.match(text, pos)
        if name is not None and name.end() - pos <= 80:
            found, end = f'"{name[0]}"', name.end()
        else:
            is_shown = character.isprintable() and character not in ("", '"')
            found = _CHARACTER_NAMES.get(character) or (f'"{character}"' if is_shown else repr(character))
            end = pos + (1 if character not in ("", "\n", "\r") else 0)
        fix = _CHARACTER_FIXES.get(character, fix)
        return ParseError(f"expected {expected}, found {found}", pos, end, fix, related)

    def _is_list_start(self, pos: int) -> bool:
        """Return whether `[[` can start a list of lists, and no mark of another template language."""
        end = self.text.find("\n", pos)
        return "]]" not in self.text[pos : end if end >= 0 else len(self.text)]
