"""Explains why a YAML text cannot be read: what is wrong, where, and what to write.

The parser reports where it stopped, in terms of its grammar. The functions here look at the lines around that place for the
mistake that caused it. They run only on texts with errors.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from wharf.languages.markup_errors import MarkupError, find_line_end, shorten

_DUPLICATE_KEY: Final = re.compile(r'found duplicate key "([^"]*)"')
_UNKNOWN_TAG: Final = re.compile(r"could not determine a constructor for the tag '([^']*)'")
_UNKNOWN_ALIAS: Final = re.compile(r"found undefined alias '([^']*)'")
_BAD_CHARACTER: Final = re.compile(r"found character '(.)' that cannot start any token")
_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_LINE: Final = re.compile(r"(?P<blank> *)(?P<dashes>(?:- +|-$)*)(?P<content>.*)")
_KEY: Final = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s:#"'\[\]{},&*][^:#]*?):(?=[ \t]|$)[ \t]*""")
_KEY_WITHOUT_BLANK: Final = re.compile(r"([A-Za-z_][\w.-]*):(?=[^\s:/])(?!.*:(?:\s|$))")
_KEY_WITHOUT_COLON: Final = re.compile(r"([A-Za-z_]\w*)(?:[ \t]*=[ \t]*|[ \t]+)([^\s=:#].*)?$")
_ITEM_WITHOUT_BLANK: Final = re.compile(r"-([^\s\-].*)")
_NO_BREAK_SPACE: Final = re.compile("^[ \t-]*(?:[\\w.]+:[ \t]*)?\u00a0", re.MULTILINE)
"""The first no-break space in the indentation of a line, or after its key."""
_DOCUMENT_END: Final = re.compile(r"^\.\.\.(?=[ \t\r\n]|$)", re.MULTILINE)
_DOCUMENT_START: Final = re.compile(r"^---(?=[ \t\r\n]|$)", re.MULTILINE)
_HCL_START: Final = re.compile(r'(?:job|group|variable)[ \t]+"[^"\n]*"[ \t]*\{')
_BLOCK_END: Final = "expected <block end>, but found "
_BRACKETS: Final = {"{": "}", "[": "]"}


def explain_yaml_error(text: str, error: Any, root: Any) -> MarkupError:  # ruamel.yaml has no types for its errors.
    """Return an error of the parser in words for users. `root` is the tree, if the text has one."""
    fault = _Fault(
        text,
        error.problem or "",
        error.context or "",
        error.problem_mark.index if error.problem_mark is not None else 0,
        error.context_mark.index if error.context_mark is not None else None,
        root,
    )
    for explain in _EXPLANATIONS:
        explained = explain(fault)
        if explained is not None:
            return explained
    detail = " ".join(part for part in (fault.context, fault.problem) if part).splitlines()[0]
    return MarkupError(f"this is not YAML: {detail}", fault.at)


def explain_documents(text: str, first_end: int) -> MarkupError:
    """Return the error of a text with several documents. `first_end` is where the value of the first one ends."""
    second = _DOCUMENT_START.search(text, first_end) or _DOCUMENT_END.search(text, first_end)
    start, end = second.span() if second is not None else (first_end, first_end + 1)
    return MarkupError(
        "expected one YAML document, got several", start, end,
        f"write one file for each document, or delete the line {text[start:end] or '---'}",
    )  # fmt: skip


def explain_text(text: str, start: int) -> tuple[str, str]:
    """Return why a document is a text and no map, and how to fix it; empty texts if no reason is known."""
    if _HCL_START.match(text, start):
        return "the file is written in HCL", "give it a name that ends with .hcl"
    line = text[start : find_line_end(text, start)]
    if match := _KEY_WITHOUT_BLANK.match(line):
        return "a blank is missing after the colon", f"write {match[1]}: {shorten(line[match.end() :])}"
    if match := _KEY_WITHOUT_COLON.match(line):
        return f'the key "{match[1]}" has no colon', f"write {match[1]}: {shorten(match[2] or '')}".rstrip()
    return "", ""


@dataclass(frozen=True, slots=True)
class _MarkupLine:
    """A line of the text: where it starts, and its parts."""

    start: int
    column: int
    """Where its content starts, after blanks and dashes, from 0."""
    dash_column: int | None
    content: str

    @property
    def content_start(self) -> int:
        return self.start + self.column

    @property
    def end(self) -> int:
        return self.content_start + len(self.content)


@dataclass(frozen=True, slots=True)
class _Fault:
    """An error of the parser: its words, and the offsets of its places."""

    text: str
    problem: str
    context: str
    at: int
    context_at: int | None
    root: Any

    def get_line(self, offset: int) -> _MarkupLine:
        return _read_line(self.text, self.text.rfind("\n", 0, offset) + 1)

    def find_line_above(self, line: _MarkupLine) -> _MarkupLine | None:
        """Return the nearest line above that is not blank and no comment."""
        start = line.start
        while start > 0:
            start = self.text.rfind("\n", 0, start - 1) + 1
            above = _read_line(self.text, start)
            if above.content.strip() and not above.content.startswith("#"):
                return above
        return None

    def get_line_number(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


def _read_line(text: str, start: int) -> _MarkupLine:
    match = _LINE.match(text[start : find_line_end(text, start)])
    assert match is not None, "the pattern matches every line"
    dashes = match["dashes"]
    return _MarkupLine(start, match.start("content"), match.start("dashes") if dashes else None, match["content"])


def _quote(text: str) -> str:
    """Return a value in quotes, for a fix."""
    text = _strip_comment(text)
    return (
        "'" + shorten(text) + "'" if '"' in text and "'" not in text else json.dumps(shorten(text), ensure_ascii=False)
    )


def _strip_comment(text: str) -> str:
    return re.split(r"\s#", text, maxsplit=1)[0].strip()


# -- characters and quotes


def _explain_tab(fault: _Fault) -> MarkupError | None:
    if "character '\\t'" not in fault.problem:
        return None
    start = fault.at
    end = start
    while fault.text[end : end + 1] == "\t":
        end += 1
    line = fault.get_line(start)
    if fault.text[line.start : start].strip():
        return MarkupError("the line has a tab", start, end, "write a blank instead of the tab")
    return MarkupError("the line has a tab", start, end, "indent YAML with blanks: two for each level")


def _explain_first_character(fault: _Fault) -> MarkupError | None:
    """Explain a value without quotes that begins with a character that has a meaning in YAML."""
    bad = _BAD_CHARACTER.match(fault.problem)
    character = bad[1] if bad is not None else ""
    if fault.context in ("while scanning an alias", "while scanning an anchor") and fault.context_at is not None:
        return _refuse_start(fault, fault.context_at, fault.text[fault.context_at])
    if character:
        return _refuse_start(fault, fault.at, character)
    if "<document start>" in fault.problem:
        line: _MarkupLine | None = fault.get_line(fault.at)
        while line is not None and not line.content.startswith("%"):
            line = fault.find_line_above(line)
        if line is not None:
            return _refuse_start(fault, line.content_start, "%")
    if fault.problem.startswith(("expected chomping", "expected a comment or a line break")):
        start = fault.context_at if fault.context_at is not None else fault.at
        sign = fault.text[start]
        return MarkupError(
            f"a text follows {sign} on the same line", start, find_line_end(fault.text, start),
            f"write it on the lines below {sign}, or without {sign} and in quotes",
        )  # fmt: skip
    if "mapping keys are not allowed" in fault.problem:
        return _refuse_start(fault, fault.at, "?")
    return None


def _refuse_start(fault: _Fault, start: int, sign: str) -> MarkupError:
    end = find_line_end(fault.text, start)
    value = _strip_comment(fault.text[start:end])
    return MarkupError(
        f"a value that begins with {sign} needs quotes", start, start + len(value), f"write {_quote(value)}"
    )


def _explain_alias(fault: _Fault) -> MarkupError | None:
    match = _UNKNOWN_ALIAS.match(fault.problem)
    if match is None:
        return None
    end = fault.at + 1 + len(match[1])
    return MarkupError(
        f"no anchor &{shorten(match[1])} is above this alias", fault.at, end,
        f'if it is a text, write "*{shorten(match[1])}"; if not, mark the value that it repeats by &{shorten(match[1])}',
    )  # fmt: skip


def _explain_tag(fault: _Fault) -> MarkupError | None:
    match = _UNKNOWN_TAG.match(fault.problem)
    if match is None:
        return None
    tag = f"!!{match[1].removeprefix(_TAG_PREFIX)}" if match[1].startswith(_TAG_PREFIX) else match[1]
    end = fault.at + len(tag) if fault.text.startswith(tag, fault.at) else fault.at + 1
    return MarkupError(
        f"the tag {shorten(tag)} is unknown", fault.at, end, "delete it, or put the value in quotes if it is a text"
    )


def _explain_quote(fault: _Fault) -> MarkupError | None:
    """Explain a quoted text without an end, with a wrong end, or with an unknown escape."""
    if "escape character" in fault.problem or (
        fault.context == "while scanning a double-quoted scalar" and "expected" in fault.problem
    ):
        start = fault.text.rfind("\\", 0, fault.at + 1)
        return MarkupError(
            "this escape is unknown", start, start + 2,
            'write \\\\ for a backslash, or put the text in single quotes: \'C:\\x\'',
        )  # fmt: skip
    if fault.context == "while scanning a quoted scalar" and fault.context_at is not None:
        return _refuse_open_quote(fault, fault.context_at)
    if not fault.problem.startswith(_BLOCK_END) and "expected ',' or" not in fault.problem:
        return None
    before = fault.text[: fault.at].rstrip(" ")
    closing = before[-1:]
    if closing not in ("'", '"'):
        return None
    opening = _find_opening_quote(fault)
    if opening is None:
        return None
    if "\n" in fault.text[opening : fault.at]:
        return _refuse_open_quote(fault, opening)
    if len(before) < fault.at or closing == '"':
        escape = '\\"' if closing == '"' else "''"
        message, fix = (
            "a text follows the closing quote",
            f"put the whole value in quotes, and write {escape} for {closing} in it",
        )
    else:
        message, fix = "the text ends at this quote", "write '' for an apostrophe, or put the text in double quotes"
    return MarkupError(message, fault.at - (len(before) == fault.at), find_line_end(fault.text, fault.at), fix)


def _refuse_open_quote(fault: _Fault, opening: int) -> MarkupError:
    quote = fault.text[opening]
    return MarkupError(
        "the quote that opens here is not closed", opening, find_line_end(fault.text, opening),
        f"write {quote} at the end of the text",
    )  # fmt: skip


def _find_opening_quote(fault: _Fault) -> int | None:
    """Return where the quoted text that ends before the error begins."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    opening = None
    try:
        for token in YAML(typ="safe", pure=True).scan(fault.text):
            if token.start_mark.index >= fault.at:
                break
            opening = token.start_mark.index if getattr(token, "style", None) in ("'", '"') else None
    except YAMLError:
        pass
    return opening


# -- flow style


def _find_opening(text: str, at: int) -> int | None:
    """Return the offset of the bracket at an offset, or else of the last one before it."""
    if text[at : at + 1] in _BRACKETS:
        return at
    opening_at = max(text.rfind(bracket, 0, at) for bracket in _BRACKETS)
    return opening_at if opening_at >= 0 else None


def _explain_flow(fault: _Fault) -> MarkupError | None:
    """Explain a list or map in brackets without an end, or a text that begins with a bracket."""
    text = fault.text
    if fault.problem.startswith("a key must be a text") and text[fault.at - 1 : fault.at + 1] == "{{":
        return _refuse_start(fault, fault.at - 1, "{")
    if "while parsing a flow" not in fault.context or fault.context_at is None:
        before = text[: fault.at].rstrip(" ")[-1:]
        if fault.problem == f"{_BLOCK_END}'<scalar>'" and before in ("}", "]"):
            line = fault.get_line(fault.at)
            key = _KEY.match(line.content)
            return _refuse_start(
                fault, line.content_start + (key.end() if key is not None else 0), "{" if before == "}" else "["
            )
        return None
    opening_at = _find_opening(text, fault.context_at)
    if opening_at is None:
        return None
    opening = text[opening_at]
    closing = _BRACKETS[opening]
    found = text[fault.at : fault.at + 1]
    line = fault.get_line(opening_at)
    if found in ("}", "]") and found != closing:
        related = (opening_at, opening_at + 1, f"the {opening} is at")
        return MarkupError(f"{found} does not close {opening}", fault.at, fault.at + 1, f"write {closing}", related)
    if fault.get_line(fault.at).start != line.start or fault.at >= len(text.rstrip()):
        return MarkupError(
            f"the {opening} that opens here is not closed", opening_at, opening_at + 1,
            f"write {closing} at the end, or put the value in quotes if it is a text",
        )  # fmt: skip
    return MarkupError(
        f'expected "," or "{closing}"',
        fault.at,
        fault.at + 1,
        "separate the entries by commas, and put texts with , : [ ] { } in quotes",
    )


# -- keys, values and levels


def _explain_duplicate(fault: _Fault) -> MarkupError | None:
    match = _DUPLICATE_KEY.match(fault.problem)
    if match is None:
        return None
    name = shorten(match[1])
    keys = _find_keys(fault.root, fault.context_at)
    first = next((start for start, value in keys if value == match[1]), None)
    end = next((fault.at + len(value) for start, value in keys if start == fault.at), fault.at + 1)
    related = (first, first + len(match[1]), "the first is at") if first is not None and first != fault.at else None
    return MarkupError(f'the key "{name}" occurs twice', fault.at, end, "remove one", related)


def _find_keys(root: Any, start: int | None) -> list[tuple[int, str]]:
    """Return the keys of the map that begins at an offset, with their places."""
    stack = [root] if root is not None else []
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen or not isinstance(node.value, list):
            continue
        seen.add(id(node))
        pairs = [item for item in node.value if isinstance(item, tuple)]
        if pairs and node.start_mark.index == start:
            return [(key.start_mark.index, str(key.value)) for key, _ in pairs]
        stack += (
            [value for _, value in pairs] if pairs else [item for item in node.value if not isinstance(item, tuple)]
        )
    return []


def _explain_merge(fault: _Fault) -> MarkupError | None:
    if "for merging" not in fault.problem:
        return None
    return MarkupError(
        "<< needs a map, or a list of maps", fault.at, fault.at + 1, "write <<: *name, where &name marks a map"
    )


def _explain_colon(fault: _Fault) -> MarkupError | None:
    """Explain `key: value` where no key is allowed: a second colon, a missing blank, or a wrong indentation."""
    if fault.problem != "mapping values are not allowed here":
        return None
    line = fault.get_line(fault.at)
    key = _KEY.match(line.content)
    if key is not None and line.content_start + key.end() < fault.at:
        start = line.content_start + key.end()
        value = _strip_comment(line.content[key.end() :])
        return MarkupError('a value with ": " in it needs quotes', start, start + len(value), f"write {_quote(value)}")
    above = fault.find_line_above(line)
    if above is not None:
        return _explain_key(above) or _refuse_indentation(fault, line, above)
    return None


def _explain_missing_colon(fault: _Fault) -> MarkupError | None:
    """Explain a line that is no key, no item and no text of several lines."""
    if fault.problem != "could not find expected ':'" or fault.context_at is None:
        return None
    line = fault.get_line(fault.context_at)
    explained = _explain_key(line) or _explain_item(line)
    if explained is not None:
        return explained
    above = fault.find_line_above(line)
    if above is not None and "<<" in above.content:
        return MarkupError(
            "YAML has no <<", above.start + above.column + above.content.index("<<"), above.end,
            "write | there, and the text on the lines below, indented",
        )  # fmt: skip
    return MarkupError(
        "this line is no key with a value", line.content_start, line.end,
        'write "key: value"; put a text of several lines below "key: |", indented',
    )  # fmt: skip


def _explain_key(line: _MarkupLine) -> MarkupError | None:
    """Explain a line that has a key, but no colon with a blank after it."""
    if match := _KEY_WITHOUT_BLANK.match(line.content):
        start = line.content_start + match.end() - 1
        return MarkupError(
            "a blank is missing after the colon", start, start + 1,
            f"write {match[1]}: {shorten(line.content[match.end() :])}",
        )  # fmt: skip
    if match := _KEY_WITHOUT_COLON.fullmatch(line.content):
        return MarkupError(
            f'the key "{match[1]}" has no colon', line.content_start, line.content_start + len(match[1]),
            f"write {match[1]}: {shorten(match[2] or '')}".rstrip(),
        )  # fmt: skip
    return None


def _explain_item(line: _MarkupLine) -> MarkupError | None:
    if match := _ITEM_WITHOUT_BLANK.match(line.content):
        return MarkupError(
            "a blank is missing after the -",
            line.content_start,
            line.content_start + 1,
            f"write - {shorten(match[1])}",
        )
    return None


def _refuse_indentation(fault: _Fault, line: _MarkupLine, above: _MarkupLine) -> MarkupError | None:
    """Explain a key that is indented deeper than the key above it, which has a value."""
    if line.column <= above.column or _KEY.match(above.content) is None:
        return None
    number = fault.get_line_number(above.start)
    return MarkupError(
        f"the line is indented deeper than line {number}, which has a value", line.content_start, fault.at,
        f"indent it by {above.column} blanks, as the text of line {number}, or remove that value",
    )  # fmt: skip


def _explain_level(fault: _Fault) -> MarkupError | None:
    """Explain a line whose indentation is that of no line above it."""
    if "sequence entries are not allowed" in fault.problem:
        return MarkupError(
            "a list begins on the line of its key", fault.at, fault.at + 1, 'write "- " on the line below, indented'
        )
    if not fault.problem.startswith(_BLOCK_END):
        return None
    line = fault.get_line(fault.at)
    found = fault.problem.removeprefix(_BLOCK_END)
    if found in ("'<block sequence start>'", "'-'"):
        return _refuse_item(fault, line)
    if found == "'<block mapping start>'":
        columns = sorted({each.column for each in _list_open_lines(fault, line)} - {line.column})
        *others, last = [str(column) for column in columns[:4]] or ["0"]
        choices = f"{', '.join(others)} or {last}" if others else last
        return MarkupError(
            f"the line is indented by {line.column} blanks, unlike any line above it", line.content_start, line.end,
            f"indent it by {choices} blanks",
        )  # fmt: skip
    return None


def _refuse_item(fault: _Fault, line: _MarkupLine) -> MarkupError:
    """Explain an item of a list that is where no list is."""
    place = fault.at, fault.at + 1
    column = fault.at - line.start
    for above in _list_open_lines(fault, line):
        if above.dash_column is not None:
            number = fault.get_line_number(above.start)
            return MarkupError(
                "this - is not below the other items of its list", *place,
                f"indent it by {above.dash_column} blanks, as the - of line {number}",
            )  # fmt: skip
        if above.column <= column and _KEY.fullmatch(above.content):
            break
    return MarkupError(
        "an item of a list is among keys", *place, 'begin each item of the list with "- ", or write a key'
    )


def _list_open_lines(fault: _Fault, line: _MarkupLine) -> list[_MarkupLine]:
    """Return the lines above whose maps and lists contain a line, the nearest first."""
    found: list[_MarkupLine] = []
    column = len(fault.text)
    above = fault.find_line_above(line)
    while above is not None:
        first = above.column if above.dash_column is None else above.dash_column
        if first < column or above.column < column:
            found.append(above)
            column = min(first, above.column)
        if column == 0:
            break
        above = fault.find_line_above(above)
    return found


def _explain_no_break_space(fault: _Fault) -> MarkupError | None:
    """Explain a no-break space where YAML needs a blank. The parser takes it for a part of a text."""
    found = _NO_BREAK_SPACE.search(fault.text, 0, find_line_end(fault.text, fault.at))
    if found is None:
        return None
    return MarkupError("the line has a no-break space (U+00A0)", found.end() - 1, found.end(), "replace it by a blank")


_EXPLANATIONS: Final[tuple[Callable[[_Fault], MarkupError | None], ...]] = (
    _explain_tab, _explain_no_break_space, _explain_duplicate, _explain_quote, _explain_flow, _explain_first_character, _explain_alias, _explain_tag,
    _explain_merge, _explain_colon, _explain_missing_colon, _explain_level,
)  # fmt: skip
