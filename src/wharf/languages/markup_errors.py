"""The error of a text in JSON, YAML or TOML that cannot be read."""

from typing import Final

from wharf.languages.hcl.diagnostics import DiagnosticList, SourceFile, SourceRange

MAX_SHOWN_CHARS: Final = 60
"""The characters of a value that a fix repeats."""


class MarkupError(Exception):
    """A text cannot be read. `start` and `end` are offsets in the text, `start` is `None` if the place is not known.

    `fix` says what to write instead. `related` is a second place: its offsets and a description.
    """

    def __init__(
        self,
        message: str,
        start: int | None = None,
        end: int | None = None,
        fix: str = "",
        related: tuple[int, int, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end if end is not None or start is None else start + 1
        self.fix = fix
        self.related = related

    def __str__(self) -> str:
        return f"{self.message}: {self.fix}" if self.fix else self.message

    def add_to(self, diagnostics: DiagnosticList, name: str, text: str) -> None:
        """Add the error of a text to diagnostics. `name` is the name of the text in messages."""
        source = SourceFile(name, text, is_file=self.start is not None)
        related = None
        if self.related is not None:
            start, end, description = self.related
            related = (SourceRange(source, start, end), description)
        diagnostics.add(source, self.start or 0, self.end or 0, self.message, self.fix, related=related)


def shorten(text: str) -> str:
    """Return the start of a value, for a fix."""
    text = text.strip()
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def find_line_end(text: str, offset: int) -> int:
    """Return where the line of an offset ends, without its line break."""
    end = text.find("\n", offset)
    if end < 0:
        return len(text.rstrip("\r"))
    return end - (text[end - 1 : end] == "\r")
