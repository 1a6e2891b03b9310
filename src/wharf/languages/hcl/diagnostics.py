"""What is wrong in a document, where, and how to fix it; and the text that users read.

A parser and an evaluator collect `Diagnostic`s and raise them together as `DocumentErrors`, sorted by place.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

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
_ITEM_LINE: Final = re.compile(r'[ \t]*+(?:[\w\-]++[ \t]*+(?:"[^"\n]*+"[ \t]*+)*+\{|\}|$)')
_SENSITIVE: Final = re.compile(r'\bsensitive"?[ \t]*+[=:][ \t]*+"?true\b')
_DECLARATION_END: Final = re.compile(r"^\}|\bvariable\b", re.MULTILINE)
_VARIABLE_HEADER: Final = re.compile(r'variable"?[\s:{]*"?([\w\-]+)')


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name probably holds a secret. No message shows its value."""
    return _SECRET_NAME.search(name) is not None


class SourceFile:
    """The text of one source under the name that messages show. `is_file` is false for an argument without lines.

    Messages show no values of `secret_names`, beside those of names that hint at secrets.
    """

    __slots__ = ("_line_starts", "is_file", "name", "secret_names", "text")

    def __init__(self, name: str, text: str, *, is_file: bool = True, secret_names: Set[str] = frozenset()) -> None:
        self.secret_names = secret_names
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
    """The values of sensitive variables, which no text for users may contain, and the names of these variables.

    Values of variables with the name of a secret, such as `db_password`, are hidden in errors only.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.secret_names: set[str] = set()
        """The variables whose values only errors may not contain."""
        self._texts: set[str] = set()
        self._texts_in_errors: set[str] = set()

    def add(self, value: object) -> None:
        """Add a value: its text, and each text inside a list or map. Short texts and numbers hide nothing and are left out."""
        _add_texts(value, self._texts)

    def add_in_errors(self, value: object) -> None:
        """Add a value that only errors may not contain."""
        _add_texts(value, self._texts_in_errors)

    def hide(self, text: str) -> str:
        """Return a text without the values, also if it has only the start of a long value."""
        return _hide_texts(text, self._texts)

    def hide_in_error(self, text: str) -> str:
        """Return the text of an error without the values, and without those of variables with the name of a secret."""
        return _hide_texts(text, self._texts | self._texts_in_errors)

    def hide_in(self, value: Any) -> Any:  # Any value of a document.
        """Return a value of a document with the hidden values replaced in all of its texts."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {key: self.hide_in(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.hide_in(item) for item in value]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return HIDDEN if is_number and str(value) in self._texts else value


def _add_texts(value: object, texts: set[str]) -> None:
    """Add the text of a value, and each text inside a list or map."""
    if isinstance(value, str):
        for part in {value, *value.splitlines()}:
            text = part.strip()
            if len(text) >= MIN_SENSITIVE_CHARS and len(texts) < MAX_HIDDEN_TEXTS:
                texts.update((text, text.upper(), text.lower()))
    elif isinstance(value, Mapping):
        for item in value.values():
            _add_texts(item, texts)
    elif isinstance(value, list):
        for item in value:
            _add_texts(item, texts)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= MIN_HIDDEN_NUMBER:
        texts.add(str(value))


def _hide_texts(text: str, texts: Set[str]) -> str:
    """Return a text without the others, also if it has only the start of a long one."""
    for hidden in sorted(texts, key=len, reverse=True):
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
        hide = (hidden or HiddenValues()).hide_in_error
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
        self._hidden = hidden
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
        parts = [diagnostic.render(self._hidden) for diagnostic in self.diagnostics]
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
        self.errors: list[ExpressionError] = [self]

    @property
    def fix(self) -> str:
        """How to fix the error."""
        return self.fix_source if isinstance(self.fix_source, str) else self.fix_source()

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
        return ExpressionError.join([ExpressionError(e.message, start, end, e.fix_source) for e in self.errors])

    def map_offsets(self, find_offset: Callable[[int], int]) -> "ExpressionError":
        """Return the same errors at the places to which their offsets lead."""
        return ExpressionError.join(
            [ExpressionError(e.message, find_offset(e.start), find_offset(e.end), e.fix_source) for e in self.errors]
        )


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

    def add_evaluation_error(self, source: SourceFile, error: ExpressionError, *, is_secret: bool = False) -> None:
        """Add the errors of an expression of this source, without consequences of other errors."""
        for single in error.errors:
            if single.message:
                self.add(source, single.start, single.end, single.message, single.fix_source, is_secret=is_secret)

    def raise_if_any(self) -> None:
        """Raise `DocumentErrors` if a diagnostic was added."""
        if self.diagnostics:
            raise DocumentErrors(self.diagnostics, self.hidden, self.omitted_count)


def is_secret_place(place: SourceRange) -> bool:
    """Return whether the line at a place may show the value of a name that hints at a secret."""
    source = place.source
    if not source.is_file:
        return is_secret_name(source.name)
    offset = place.start
    for count in range(MAX_SECRET_LINES):
        _, start = source.get_line_start(offset)
        line = source.get_line_text(offset)[:10_000]
        names = [(match[1] or match[2] or "", match[3] is not None) for match in _ASSIGNED_NAME.finditer(line)]
        is_secret = any(is_secret_name(name) or name in source.secret_names for name, is_ref in names if not is_ref)
        if is_secret:
            return True
        if any(name in ("default", '"default"') for name, _ in names):
            return _is_in_secret_variable(source.text, start + len(line))
        if names or start == 0 or (count == 0 and _ITEM_LINE.match(line)):
            return False
        offset = start - 1  # The line continues a value that begins further up.
    return False


def _is_in_secret_variable(text: str, offset: int) -> bool:
    """Return whether the nearest variable that is declared before an offset has the name of a secret."""
    header = text.rfind("variable", max(0, offset - 10_000), offset)
    match = _VARIABLE_HEADER.match(text, header) if header >= 0 else None
    if match is None:
        return False
    return is_secret_name(match[1]) or _SENSITIVE.search(text[header : _find_declaration_end(text, offset)]) is not None


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
