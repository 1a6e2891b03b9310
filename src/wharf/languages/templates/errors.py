"""The errors of templates: the reason, with line and column."""


class TemplateError(Exception):
    """A template that cannot be parsed or rendered, with the reason and its line and column, counted from 1."""

    def __init__(self, reason: str, source: str, offset: int) -> None:
        before = source[:offset]
        self.reason = reason
        self.line = before.count("\n") + 1
        self.column = offset - (before.rfind("\n") + 1) + 1
        super().__init__(f"line {self.line}, column {self.column}: {reason}")


class EvaluationError(Exception):
    """A function or a value rejects its arguments. The renderer adds the location and raises `TemplateError`."""
