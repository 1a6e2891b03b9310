"""What is wrong in a document, where, and how to fix it; and the text that users read.

A parser and an evaluator collect `Diagnostic`s and raise them together as `DocumentErrors`, sorted by place.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from wharf.languages.graphemes import count_graphemes, split_graphemes
from wharf.languages.source_locations import SourceLocation

MAX_DIAGNOSTICS: Final = 20
"""The diagnostics of one run. More would bury the first, which the author fixes first."""
MAX_COLLECTED: Final = 1_000
"""The diagnostics of one stage that are stored. Further ones are only counted, because an object for each takes memory and time."""
MAX_EXCERPT_CHARS: Final = 120
"""The characters of a line that a diagnostic shows. A longer line is cut around the mark."""
_SECRET_NAME: Final = re.compile(
    r"passw|passphrase|secret|token|credential|private|api_?-?key|access_?-?key|auth(?!or)", re.IGNORECASE
)


FixSource: TypeAlias = str | Callable[[], str]
HIDDEN: Final = "(hidden)"
MIN_SENSITIVE_CHARS: Final = 3
"""A shorter value of a sensitive variable is no secret, and hiding it would hide parts of other words."""
MIN_COMPUTED_CHARS: Final = 6
"""A shorter text that is computed from a sensitive variable is hidden only in the fields that contain it."""
_COMMON_TEXTS: Final = frozenset(("true", "false", "null"))
MIN_HIDDEN_NUMBER: Final = 1_000
"""A smaller number of a sensitive variable is not hidden: it would hide line numbers."""
MIN_SHOWN_START_CHARS: Final = 16
"""A text that has as many first characters of a hidden value shows a part of it."""
MAX_HIDDEN_TEXTS: Final = 3_000
"""The texts that are searched in each message."""
MIN_HIDDEN_CHARS: Final = 2
"""A shorter part of a secret is a sign such as `=`, and shows nothing."""
MAX_SECRET_LINES: Final = 200
"""How many lines a value may span for its name to be found."""
_ASSIGNED_NAME: Final = re.compile(
    r'(?:"([^"\n]*+)"|(?<![\w\-])([\w\-]++))[ \t]*+[=:](?![=>])[ \t]*+((?:var|local)\.[\w.\-]++[ \t]*+$)?'
)
_NAME: Final = re.compile(r"[A-Za-z_][\w\-]*")
_QUOTED: Final = re.compile(r"""\".*\"|'.*'|\b\d[\d.,]*\b""", re.DOTALL)
_ITEM_LINE: Final = re.compile(r'[ \t]*+(?:[\w\-]++[ \t]*+(?:"[^"\n]*+"[ \t]*+)*+\{|\}|$)')
_SENSITIVE: Final = re.compile(r'\bsensitive"?[ \t]*+[=:][ \t]*+"?(true|false)\b')
_DECLARATION_END: Final = re.compile(r"^\}|\bvariable\b", re.MULTILINE)
_VARIABLE_HEADER: Final = re.compile(r'variable"?[\s:{]*"?([\w\-]+)')


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name probably holds a secret. It is sensitive, unless its declaration says otherwise."""
    return _SECRET_NAME.search(name) is not None


NO_NAMES: Final[Mapping[str, bool]] = {}
"""The declared names of a source without variables."""


class SourceFile:
    """The text of one source under the name that messages show. `is_file` is false for an argument without lines.

    Messages show no values of names that hint at secrets. `declared_names` says of variables whether they are sensitive.
    """

    __slots__ = ("_line_starts", "declared_names", "is_file", "name", "text")

    def __init__(
        self, name: str, text: str, *, is_file: bool = True, declared_names: Mapping[str, bool] = NO_NAMES
    ) -> None:
        self.declared_names = declared_names
        self.name = name
        self.text = text
        self.is_file = is_file
        self._line_starts: list[int] | None = None

    def get_line_start(self, offset: int) -> tuple[int, int]:
        """Return the number of the line at an offset, from 1, and the offset where the line starts."""
        starts = self._line_starts
        if starts is None:
            starts = self._line_starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        line = bisect_right(starts, offset)
        return line, starts[line - 1]

    def get_location(self, offset: int) -> SourceLocation:
        """Return line and column of an offset. The column counts characters as users see them."""
        line, start = self.get_line_start(offset)
        return SourceLocation(line, count_graphemes(self.text[start:offset]) + 1)

    def get_line_text(self, offset: int) -> str:
        """Return the line at an offset, without its line end."""
        _, start = self.get_line_start(offset)
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)].removesuffix("\r")


class HiddenValues:
    """The values of sensitive variables and all values that are computed from them, and the names of these variables.

    No text for users may contain them. This is a second net: fields of the job are hidden by their paths (record 0249).
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._texts: set[str] = set()
        self._ordered: list[str] = []

    def add(self, value: object) -> None:
        """Add a value: its text, and each text inside a list or map. Short texts and numbers hide nothing and are left out."""
        _add_texts(value, self._texts, MIN_SENSITIVE_CHARS, has_keys=True)

    def add_computed(self, value: object) -> None:
        """Add a value that is computed from a sensitive variable, without keys. It is often a common word, so short texts are left out."""
        _add_texts(value, self._texts, MIN_COMPUTED_CHARS, has_keys=False)

    def hide(self, text: str) -> str:
        """Return a text without the values, also if it has only the start of a long value."""
        if len(self._ordered) != len(self._texts):
            self._ordered = sorted(self._texts, key=len, reverse=True)
        return _hide_texts(text, self._ordered)


def _add_texts(value: object, texts: set[str], min_chars: int, *, has_keys: bool) -> None:
    """Add the text of a value, and each text inside a list or map; with `has_keys`, also each key."""
    if isinstance(value, str):
        for part in {value, *value.splitlines()}:
            text = part.strip()
            if len(text) >= min_chars and len(texts) < MAX_HIDDEN_TEXTS and text.lower() not in _COMMON_TEXTS:
                texts.update((text, text.upper(), text.lower()))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if has_keys:
                _add_texts(key, texts, min_chars, has_keys=True)
            _add_texts(item, texts, min_chars, has_keys=has_keys)
    elif isinstance(value, list):
        for item in value:
            _add_texts(item, texts, min_chars, has_keys=has_keys)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= MIN_HIDDEN_NUMBER:
        texts.add(str(value))


def _hide_texts(text: str, texts: Iterable[str]) -> str:
    """Return a text without the others, which begin with the longest, also if it has only the start of a long one."""
    for hidden in texts:
        start = text.find(hidden[:MIN_SHOWN_START_CHARS])
        while start >= 0:
            length = _count_common_chars(text[start : start + len(hidden)], hidden)
            text = text[:start] + HIDDEN + text[start + length :]
            start = text.find(hidden[:MIN_SHOWN_START_CHARS], start + len(HIDDEN))
    return text


def _count_common_chars(text: str, other: str) -> int:
    """Return how many first characters two texts share."""
    return next(
        (at for at, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1]), min(len(text), len(other))
    )


@dataclass(frozen=True, slots=True)
class SourceRange:
    """A part of a source: the offsets of its start and of its end."""

    source: SourceFile
    start: int
    end: int

    @property
    def text(self) -> str:
        """The text of this part."""
        return self.source.text[self.start : self.end]

    @property
    def location(self) -> SourceLocation:
        return self.source.get_location(self.start)

    def __str__(self) -> str:
        if not self.source.is_file:
            return self.source.name
        location = self.location
        return f"{self.source.name}:{location.line}:{location.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error of a document.

    `fix_source` is a sentence that says what to write, or a function that returns it: searching the nearest known name
    takes long, and only a few errors are shown. `related` is a second place, with its description. A secret part shows no
    excerpt of the source.
    """

    place: SourceRange
    message: str
    fix_source: FixSource = ""
    related: tuple[SourceRange, str] | None = None
    is_secret: bool = False

    @property
    def fix(self) -> str:
        """How to fix the error, or an empty text."""
        return self.fix_source if isinstance(self.fix_source, str) else self.fix_source()

    def render(self, hidden: HiddenValues | None = None) -> str:
        """Return the text for users: place and message, the line with a mark, the second place, and the fix.

        Lines of the source that contain a hidden value are left out.
        """
        hide = (hidden or HiddenValues()).hide
        message, fix = hide(self.message), hide(self.fix)
        is_secret = self.is_secret or is_secret_place(self.place)
        if is_secret:
            marked = self.place.source.text[self.place.start : self.place.end].strip()
            is_name = _NAME.fullmatch(marked) is not None and is_secret_name(marked)
            if len(marked) >= MIN_HIDDEN_CHARS and not is_name:
                message, fix = message.replace(marked, HIDDEN), fix.replace(marked, HIDDEN)
        lines = [_to_line(f"{self.place}: {message}")]
        if not is_secret:
            lines += _render_excerpt(self.place, hide)
        if self.related is not None:
            place, description = self.related
            lines.append(_to_line(f"   {description}: {place}"))
            lines += _render_excerpt(place, hide) if not is_secret_place(place) else []
        if fix:
            lines.append(_to_line(f"   {fix}"))
        return "\n".join(lines)


class DocumentErrors(Exception):
    """The errors of one stage, sorted by place. At most `MAX_DIAGNOSTICS`; `omitted_count` were left out."""

    def __init__(
        self, diagnostics: Iterable[Diagnostic], hidden: HiddenValues | None = None, omitted_count: int = 0
    ) -> None:
        self.hidden = hidden
        in_order: dict[str, int] = {}
        found = list(diagnostics)
        for diagnostic in found:
            in_order.setdefault(diagnostic.place.source.name, len(in_order))
        unique = {(d.place.source.name, d.place.start, d.message): d for d in reversed(found)}
        ordered = sorted(unique.values(), key=lambda d: (in_order[d.place.source.name], d.place.start))
        self.diagnostics = tuple(ordered[:MAX_DIAGNOSTICS])
        self.omitted_count = omitted_count + len(ordered) - len(self.diagnostics)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The text for users: all diagnostics, one below the other."""
        parts = [diagnostic.render(self.hidden) for diagnostic in self.diagnostics]
        if self.omitted_count:
            parts.append(f"and {self.omitted_count} more errors")
        return "\n".join(parts)


class ExpressionError(Exception):
    """An expression has no value. `start` and `end` are offsets in the source of the expression.

    A fix that takes long to find, such as the nearest known name, is a function, because `try` and `can` discard errors.
    Several operands may have errors: `errors` lists them. An error without a message is a consequence of an error that is
    reported elsewhere, and is not reported again.
    """

    def __init__(self, message: str, start: int, end: int, fix: FixSource = "") -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end
        self.fix_source = fix
        self.is_sensitive = False
        """Whether the message or the fix may contain parts of a sensitive value."""
        self.errors: list[ExpressionError] = [self]

    @property
    def fix(self) -> str:
        """How to fix the error."""
        return self.fix_source if isinstance(self.fix_source, str) else self.fix_source()

    def mark_sensitive(self) -> "ExpressionError":
        """Mark all errors as those of an expression that has read a sensitive value, and return this one."""
        for error in self.errors:
            error.is_sensitive = True
        return self

    @classmethod
    def join(cls, errors: list["ExpressionError"]) -> "ExpressionError":
        """Return one error that stands for several."""
        if len(errors) == 1:
            return errors[0]
        joined = cls(errors[0].message, errors[0].start, errors[0].end)
        joined.errors = [single for error in errors for single in error.errors][:MAX_DIAGNOSTICS]
        return joined

    def relocate(self, start: int, end: int) -> "ExpressionError":
        """Return the same errors at another place."""
        return ExpressionError.join([error._move(start, end) for error in self.errors])

    def map_offsets(self, find_offset: Callable[[int], int]) -> "ExpressionError":
        """Return the same errors at the places to which their offsets lead."""
        return ExpressionError.join(
            [error._move(find_offset(error.start), find_offset(error.end)) for error in self.errors]
        )

    def _move(self, start: int, end: int) -> "ExpressionError":
        moved = ExpressionError(self.message, start, end, self.fix_source)
        moved.is_sensitive = self.is_sensitive
        return moved


@dataclass(slots=True)
class DiagnosticList:
    """Collects the diagnostics of one stage."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    hidden: HiddenValues = field(default_factory=HiddenValues)
    omitted_count: int = 0
    """The diagnostics that are not stored."""

    def add(
        self,
        source: SourceFile,
        start: int,
        end: int,
        message: str,
        fix: FixSource = "",
        *,
        related: tuple[SourceRange, str] | None = None,
        is_secret: bool = False,
    ) -> None:
        """Add a diagnostic for a part of a source."""
        if len(self.diagnostics) >= MAX_COLLECTED:
            self.omitted_count += 1
            return
        self.diagnostics.append(Diagnostic(SourceRange(source, start, end), message, fix, related, is_secret))

    def add_evaluation_error(
        self, source: SourceFile, error: ExpressionError, *, is_secret: bool = False, is_sensitive: bool = False
    ) -> None:
        """Add the errors of an expression of this source, without consequences of other errors.

        `is_sensitive`: the expression has read a sensitive value. The messages then show no values.
        """
        for single in error.errors:
            message, fix = single.message, single.fix_source
            if is_sensitive or single.is_sensitive:
                message, fix = hide_quoted(message), hide_quoted(fix) if isinstance(fix, str) else ""
            if message:
                self.add(source, single.start, single.end, message, fix, is_secret=is_secret)

    def raise_if_any(self) -> None:
        """Raise `DocumentErrors` if a diagnostic was added."""
        if self.diagnostics:
            raise self.build_errors()

    def build_errors(self) -> DocumentErrors:
        """Return the diagnostics as an exception."""
        return DocumentErrors(self.diagnostics, self.hidden, self.omitted_count)


def hide_quoted(message: str) -> str:
    """Return the message of an error without the texts and numbers that it quotes: they may be parts of a sensitive value."""
    return _QUOTED.sub(HIDDEN, message)


def is_secret_place(place: SourceRange) -> bool:
    """Return whether the line at a place may show the value of a name that hints at a secret."""
    source = place.source
    if not source.is_file:
        return any(source.declared_names.values()) if source.declared_names else is_secret_name(source.name)
    offset = place.start
    for count in range(MAX_SECRET_LINES):
        _, start = source.get_line_start(offset)
        line = source.get_line_text(offset)[:10_000]
        names = [(match[1] or match[2] or "", match[3] is not None) for match in _ASSIGNED_NAME.finditer(line)]
        declared = source.declared_names
        if any(declared[name] if name in declared else is_secret_name(name) for name, is_ref in names if not is_ref):
            return True
        if any(name in ("default", '"default"') for name, _ in names):
            return _is_in_secret_variable(source.text, start + len(line))
        if names or start == 0 or (count == 0 and _ITEM_LINE.match(line)):
            return False
        offset = start - 1  # The line continues a value that begins further up.
    return False


def _is_in_secret_variable(text: str, offset: int) -> bool:
    """Return whether the nearest variable that is declared before an offset is sensitive, or has the name of a secret."""
    header = text.rfind("variable", max(0, offset - 10_000), offset)
    match = _VARIABLE_HEADER.match(text, header) if header >= 0 else None
    if match is None:
        return False
    declared = _SENSITIVE.search(text[header : _find_declaration_end(text, offset)])
    return is_secret_name(match[1]) if declared is None else declared[1] == "true"


def _find_declaration_end(text: str, offset: int) -> int:
    """Return where the declaration around an offset ends: at the next one, or at a brace at the start of a line."""
    end = _DECLARATION_END.search(text, offset, offset + 10_000)
    return end.start() if end is not None else offset + 10_000


def _render_excerpt(place: SourceRange, hide: Callable[[str], str]) -> list[str]:
    """Return the line of a place with a mark below the part, or nothing if the source has no lines or must not be shown."""
    if not place.source.is_file:
        return []
    number, line_start = place.source.get_line_start(place.start)
    line = place.source.get_line_text(place.start)
    if hide(line) != line:
        return []
    start = min(place.start - line_start, len(line))
    end = max(start, min(place.end - line_start, len(line)))
    cut_start, cut_end = 0, len(line)
    if len(line) > MAX_EXCERPT_CHARS:
        cut_start = max(0, min(start - MAX_EXCERPT_CHARS // 3, len(line) - MAX_EXCERPT_CHARS))
        cut_end = cut_start + MAX_EXCERPT_CHARS
    before, marked = line[cut_start:start], line[start : min(end, cut_end)]
    lead, tail = "..." if cut_start else "", "..." if cut_end < len(line) else ""
    blank = " " * len(lead) + "".join(
        "\t" if char == "\t" else " " * _measure_width(char) for char in split_graphemes(before)
    )
    mark = "^" * max(1, sum(map(_measure_width, split_graphemes(marked))))
    excerpt = _replace_controls(f"{lead}{line[cut_start:cut_end]}{tail}")
    return [f"{number:>5} | {excerpt}", f"{'':>5} | {blank}{mark}"]


def _to_line(text: str) -> str:
    """Return a text on one line, without control characters."""
    return _replace_controls(re.sub(r"[\r\n]+", " ", text))


def _replace_controls(text: str) -> str:
    """Replace control characters, which could change the terminal of the reader."""
    return "".join(
        "\ufffd" if unicodedata.category(char) in ("Cc", "Cf") and char != "\t" and char not in "\u200d\u200c" else char
        for char in text
    )


def _measure_width(cluster: str) -> int:
    """Return how many columns a terminal uses for a grapheme cluster."""
    return 2 if unicodedata.east_asian_width(cluster[0]) in "WF" else 1
