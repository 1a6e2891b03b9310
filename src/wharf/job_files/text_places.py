"""Finds the place in a job file of a part of a text, such as a mistake in a template inside a heredoc.

A text differs from its source by indentation, escapes and references. So the line of the part is searched in the source. A part
that the source does not contain as it is, such as one from another file, has no place.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Final

from wharf.languages.hcl.diagnostics import SourceRange
from wharf.languages.hcl.template_texts import escape_template
from wharf.languages.templates.lexer import find_token_end


def find_text_place(text: str, offset: int, left: str, value: SourceRange) -> SourceRange | None:
    """Return the place of the token at an offset of a text, or `None` if the source does not contain it.

    `left` is the left delimiter of the actions of the text, and `value` the place of its value in the source.
    """
    end = max(find_token_end(text, offset, left), offset + 1)
    for start, stop in _list_surroundings(text, offset, end, left):
        for spelled, before, length in _spell(text, start, offset, min(end, stop), stop) if start < stop else ():
            # The same line may occur several times, in the text as in the source.
            at = find_occurrence(value, spelled, text.count(text[start:stop], 0, start))
            if at >= 0:
                return SourceRange(value.source, at + before, at + before + length)
    return None


def _list_surroundings(text: str, start: int, end: int, left: str) -> Iterator[tuple[int, int]]:
    """Yield the parts of a text that may identify a token: its line without indentation, and its action up to the token."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    line_start += len(line) - len(line.lstrip())
    yield line_start, line_start + len(line.strip())
    yield max(text.rfind(left, line_start, start + len(left)), line_start), end


def _spell(text: str, start: int, offset: int, end: int, stop: int) -> Iterator[tuple[str, int, int]]:
    """Yield the spellings of a part in the languages of job files: its text, where the token begins in it, and its length."""
    for spell in (str, _escape_signs, _escape):
        yield (
            spell(text[start:stop]),
            len(spell(text[start:offset])),
            max(len(spell(text[offset:end])), 1),
        )


_escape_signs: Final = partial(escape_template, keeps_references=False)
"""Returns a part as HCL has it: `$${` stands for `${`."""


def _escape(part: str) -> str:
    """Return a part as it is in double quotes."""
    return json.dumps(part, ensure_ascii=False)[1:-1]


def find_occurrence(value: SourceRange, part: str, number: int) -> int:
    """Return the offset of an occurrence of a part in a value, counted from 0, or -1."""
    at = value.start - 1
    for _ in range(number + 1):
        at = value.source.text.find(part, at + 1, value.end)
        if at < 0:
            return -1
    return at
