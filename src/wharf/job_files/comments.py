"""Moves the comments of a job file to its conversion (record 0255).

Each comment belongs to the field, block or item beside it. Both files have places of their fields, by the same paths, so a comment
moves from the place in one file to the place in the other, whatever the two languages are.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from wharf.job_files.hcl.places import parse_path
from wharf.languages.hcl.bodies import SyntaxBody
from wharf.languages.hcl.diagnostics import SourceRange
from wharf.languages.hcl.json_documents import JsonArray, JsonNode, JsonObject
from wharf.languages.markup import MarkupDocument, MarkupFormat
from wharf.languages.toml_locations import TOML_TEXT

Path = tuple[str, ...]
DECLARATION_KEYS: Final = ("variables", "locals")
"""The first parts of the paths of variables and local values. All other paths are those of fields of the job."""
_TOML_COMMENT: Final = re.compile(rf"{TOML_TEXT.pattern}|(#[^\n]*)", re.DOTALL)
_YAML_COMMENT: Final = re.compile(r"(?:^|(?<=[ \t]))#[^\n]*", re.MULTILINE)
_STARS: Final = re.compile(r"\s*\*?\s?")
_TEXT_START: Final = re.compile(r"(?:<<-?[\w-]+|[|>][+-]?[0-9]?|\"\"\"|''')\s*$")
"""The end of a line that starts a text of several lines. Such a line cannot have a comment in each language."""
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


class Position(Enum):
    """Where a comment is in relation to the item that it belongs to."""

    FIRST = "first"  # At the start of the file, with an empty line after it.
    BEFORE = "before"  # On lines of its own before the item.
    BESIDE = "beside"  # At the end of the line of the item.
    INSIDE = "inside"  # On lines of its own, after the last item of a block, map or list.
    LAST = "last"  # At the end of the file.


@dataclass(frozen=True, slots=True)
class Place:
    """An item of a file: its path, and its offsets. `is_block`: further items may be inside of it.

    In YAML, comments inside a block are indented by more than `column`.
    """

    path: Path
    start: int
    end: int
    is_block: bool = False
    column: int = -1


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment with the item that it belongs to. `lines` have no signs of a language."""

    path: Path
    position: Position
    lines: tuple[str, ...]
    source: str
    """The comment with its signs."""
    is_apart: bool = False
    """Whether an empty line follows."""


# -- places


def list_hcl_places(
    places: Mapping[str, SourceRange], declarations: Mapping[Path, SourceRange], body: SyntaxBody
) -> list[Place]:
    """Return the places of a file in HCL. `declarations` are those of variables and local values."""
    ends: dict[int, int] = {}
    waiting = list(body.blocks)
    while waiting:
        block = waiting.pop()
        ends[block.start] = block.end
        waiting += block.body.blocks
    found: list[tuple[Path, SourceRange]] = [
        (tuple(map(str, parse_path(path))), place) for path, place in places.items()
    ]
    found += declarations.items()
    # A list of blocks has the place of its first block, and the comments there belong to the block.
    starts = {path: place.start for path, place in found}
    found = [(path, place) for path, place in found if starts.get((*path, "0")) != place.start]
    return [
        Place(
            path,
            place.start,
            ends.get(place.start, place.end),
            place.start in ends or "\n" in place.source.text[place.start : place.end],
        )
        for path, place in found
    ]


def list_markup_places(text: str, document: MarkupDocument, paths: Mapping[Path, Path] | None = None) -> list[Place]:
    """Return the places of a file in YAML, JSON or TOML.

    `paths` has the paths of the job by those of the file, if they differ.
    """
    places: list[Place] = []
    is_yaml = document.format is MarkupFormat.YAML

    def add(path: Path, node: JsonNode, start: int, *, is_key: bool) -> None:
        is_container = isinstance(node, JsonObject | JsonArray)
        is_flow = text[node.start : node.start + 1] in ("{", "[")
        column = -1 if is_flow or not is_yaml else start - (text.rfind("\n", 0, start) + 1) - (not is_key)
        own = paths.get(path, path) if paths is not None and path[:1] not in _DECLARATION_PATHS else path
        has_end = is_flow or is_yaml
        places.append(Place(own, start, node.end, is_container and has_end, column))
        if isinstance(node, JsonObject):
            for entry in node.properties:
                add((*path, entry.key), entry.value, entry.start, is_key=True)
        elif isinstance(node, JsonArray):
            for at, item in enumerate(node.items):
                add((*path, str(at)), item, item.start, is_key=False)

    tree = document.build_tree()
    if isinstance(tree, JsonObject):
        for entry in tree.properties:
            add((entry.key,), entry.value, entry.start, is_key=True)
    # The job begins with the first of its fields.
    first = min((place.start for place in places if place.path[:1] not in _DECLARATION_PATHS), default=len(text))
    return [Place((), first, len(text)), *places]


_DECLARATION_PATHS: Final = tuple((key,) for key in DECLARATION_KEYS)


# -- comments of a file


def find_markup_comments(text: str, document: MarkupDocument) -> list[tuple[int, int]]:
    """Return the offsets of the comments of a file in YAML or TOML. JSON has none."""
    if document.format is MarkupFormat.TOML:
        return [match.span(1) for match in _TOML_COMMENT.finditer(text) if match[1] is not None]
    if document.format is MarkupFormat.JSON or "#" not in text:
        return []
    texts = sorted(_list_text_ranges(document.build_tree()))
    starts = [start for start, _ in texts]
    found: list[tuple[int, int]] = []
    pos = 0
    while (match := _YAML_COMMENT.search(text, pos)) is not None:
        at = bisect_right(starts, match.start()) - 1
        if at >= 0 and match.start() < texts[at][1]:
            pos = texts[at][1]
            continue
        found.append(match.span())
        pos = match.end()
    return found


def _list_text_ranges(tree: JsonNode) -> Iterable[tuple[int, int]]:
    """Yield the offsets of the keys and scalars of a document, in which a sign # is no comment."""
    waiting: list[JsonNode] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, JsonObject):
            for entry in node.properties:
                yield entry.start, entry.end
                waiting.append(entry.value)
        elif isinstance(node, JsonArray):
            waiting += node.items
        else:
            yield node.start, node.end


def attach_comments(text: str, ranges: Iterable[tuple[int, int]], places: Sequence[Place]) -> list[Comment]:
    """Return the comments of a file with the items that they belong to, in the order of the file."""
    ordered = sorted(places, key=lambda place: (place.start, len(place.path)))
    starts = [place.start for place in ordered]
    by_path = {place.path: place for place in reversed(ordered)}
    first = starts[0] if starts else len(text)
    head_end = text.rfind("\n\n", 0, first)
    comments: list[Comment] = []
    for start, end in ranges:
        source = text[start:end]
        line_start = text.rfind("\n", 0, start) + 1
        line_end = text.find("\n", end)
        rest = text[end : line_end if line_end >= 0 else len(text)]
        comment = Comment((), Position.LAST, _strip_signs(source), source)
        if end <= head_end:
            comments.append(replace(comment, position=Position.FIRST, is_apart=text.startswith("\n\n", end)))
            continue
        if text[line_start:start].strip() and not rest.strip():
            comment = _attach_beside(comment, text, line_start, start, ordered, starts, by_path)
        else:
            next_line = text[line_end + 1 : (text.find("\n", line_end + 1) + 1 or len(text))] if line_end >= 0 else "x"
            comment = replace(comment, is_apart=not next_line.strip() and line_end >= 0)
            comment = _attach_before(comment, start, start - line_start, ordered, starts, by_path)
        comments.append(comment)
    return comments


def _attach_beside(
    comment: Comment,
    text: str,
    line_start: int,
    start: int,
    ordered: Sequence[Place],
    starts: Sequence[int],
    by_path: Mapping[Path, Place],
) -> Comment:
    """Return a comment at the end of a line with the item that begins there, or that ends there."""
    first = bisect_right(starts, line_start - 1)
    if first < len(ordered) and ordered[first].start < start:
        return replace(comment, path=_skip_root(ordered, first).path, position=Position.BESIDE)
    outer = _list_outer_places(ordered, first, by_path)
    ending = [place for place in reversed(outer) if line_start < place.end <= start]
    if ending:
        position = Position.INSIDE if text[line_start:start].lstrip()[:1] == "}" else Position.BESIDE
        return replace(comment, path=ending[0].path, position=position)
    return _attach_before(comment, start, start - line_start, ordered, starts, by_path)


def _list_outer_places(ordered: Sequence[Place], at: int, by_path: Mapping[Path, Place]) -> list[Place]:
    """Return the last item before a position in the order of the file, and the items around it, the innermost first."""
    if at == 0:
        return []
    path = ordered[at - 1].path
    outer = [by_path.get(path[:length]) for length in range(len(path), -1, -1)]
    return [place for place in outer if place is not None]


def _skip_root(ordered: Sequence[Place], first: int) -> Place:
    """Return the first place of a line that is not the whole job, which in YAML begins with its first field."""
    place = ordered[first]
    if not place.path and first + 1 < len(ordered) and ordered[first + 1].start == place.start:
        return ordered[first + 1]
    return place


def _attach_before(
    comment: Comment,
    start: int,
    column: int,
    ordered: Sequence[Place],
    starts: Sequence[int],
    by_path: Mapping[Path, Place],
) -> Comment:
    """Return a comment on lines of its own with the next item in the same block, or with the block that ends after it."""
    at = bisect_right(starts, start)
    outer = _list_outer_places(ordered, at, by_path)
    block = next((place for place in outer if place.is_block and start < place.end and column > place.column), None)
    if at < len(ordered) and (block is None or ordered[at].start < block.end):
        after = _skip_root(ordered, at)
        return replace(comment, path=after.path, position=Position.BEFORE)
    if block is not None:
        return replace(comment, path=block.path, position=Position.INSIDE)
    return replace(comment, position=Position.LAST)


def _strip_signs(source: str) -> tuple[str, ...]:
    """Return the lines of a comment without `#`, `//`, or `/*` and `*/`."""
    if source.startswith("/*"):
        lines = source[2:-2].strip().split("\n")
        return tuple(_STARS.sub("", line, count=1).rstrip() for line in lines)
    return (source[2 if source.startswith("//") else 1 :].strip(),)


# -- the comments of the converted file


def insert_comments(text: str, comments: Sequence[Comment], places: Sequence[Place], *, is_hcl: bool = False) -> str:
    """Return a text with comments. Those whose item it lacks go before the nearest item around it."""
    lines = text.split("\n")
    index = _TargetIndex(text, lines, places)
    inserted: dict[tuple[int, bool], list[str]] = {}
    for comment in comments:
        number, indentation, is_beside = index.find(comment)
        if is_beside and len(comment.lines) == 1:
            written = comment.source if is_hcl else _format_line(comment.lines[0])
            lines[number] += f" {written}" if is_hcl else f"  {written}"
            index.full_lines.add(number)
            continue
        own_lines = [_format_line(line) for line in comment.lines]
        if is_hcl:
            own_lines = [line if at == 0 else line.strip() for at, line in enumerate(comment.source.split("\n"))]
        # The comments at the end of a block precede those before the next item.
        block = inserted.setdefault((number, comment.position is not Position.INSIDE), [])
        block += [f"{' ' * indentation}{line}" for line in own_lines]
        block += [""] if comment.is_apart else []
    result: list[str] = []
    for number, line in enumerate([*lines, ""]):
        result += [*inserted.get((number, False), ()), *inserted.get((number, True), ()), line]
    return "\n".join(result).rstrip("\n") + "\n"


def _format_line(line: str) -> str:
    return f"# {line}".rstrip()


class _TargetIndex:
    """Finds the lines of a text at which comments are inserted."""

    def __init__(self, text: str, lines: Sequence[str], places: Sequence[Place]) -> None:
        self._text = text
        self._lines = lines
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._places: dict[Path, Place] = {}
        self._ends: dict[Path, int] = {}
        self._first_children: dict[Path, Place] = {}
        for place in sorted(places, key=lambda each: (each.start, len(each.path))):
            self._places.setdefault(place.path, place)
            for length in range(len(place.path) + 1):
                outer = place.path[:length]
                if outer:
                    self._places.setdefault(outer, place)
                    self._first_children.setdefault(outer[:-1], place)
                self._ends[outer] = max(self._ends.get(outer, 0), place.end)
        self._is_braced = any(place.is_block and text[place.end - 1 : place.end] == "}" for place in places)
        self.full_lines: set[int] = set()
        """The lines that have a comment at their end."""

    def find(self, comment: Comment) -> tuple[int, int, bool]:
        """Return the line of a comment, its indentation, and whether it is at the end of this line, not before it."""
        path, position = comment.path, comment.position
        if position is Position.FIRST:
            return 0, 0, False
        if position is Position.LAST or not self._places:
            return self._find_last_line(), 0, False
        while path not in self._places:
            path = path[:-1]
            position = Position.BEFORE if position is not Position.INSIDE else position
        place = self._places[path]
        number = self._get_line(place.start)
        if position is Position.INSIDE:
            return self._find_end(path, place)
        line = self._lines[number]
        if position is Position.BESIDE and number not in self.full_lines and self._can_have_comment(line):
            return number, 0, True
        return number, self._measure(line), False

    def _can_have_comment(self, line: str) -> bool:
        return _TEXT_START.search(_STRING.sub("", line)) is None

    def _find_end(self, path: Path, place: Place) -> tuple[int, int, bool]:
        """Return the line after the last item of a block."""
        if self._is_braced:
            last = self._get_line(max(place.end - 1, 0))
            if last == self._get_line(place.start):
                return last, self._measure(self._lines[last]), False
            return last, self._measure(self._lines[last]) + 2, False
        # In YAML, a block ends where the next item begins.
        last = self._get_line(max(len(self._text[: self._ends[path]].rstrip()) - 1, 0))
        first = self._first_children.get(path, place)
        return last + 1, self._measure(self._lines[self._get_line(first.start)]), False

    def _find_last_line(self) -> int:
        return len(self._lines) - 1 if self._lines and not self._lines[-1] else len(self._lines)

    def _get_line(self, offset: int) -> int:
        return bisect_right(self._starts, offset) - 1

    @staticmethod
    def _measure(line: str) -> int:
        return len(line) - len(line.lstrip(" "))
