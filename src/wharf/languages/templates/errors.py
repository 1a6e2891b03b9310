"""The errors of templates: the reason, with line and column."""

from wharf.languages.source_locations import find_location


class TemplateError(Exception):
    """A template that cannot be parsed or rendered, with the reason and its line and column, counted from 1."""

    def __init__(self, reason: str, source: str, offset: int) -> None:
        self.reason = reason
        self.line, self.column = find_location(source, offset)
        super().__init__(f"line {self.line}, column {self.column}: {reason}")


class EvaluationError(Exception):
    """A function or a value rejects its arguments. The renderer adds the location and raises `TemplateError`."""
