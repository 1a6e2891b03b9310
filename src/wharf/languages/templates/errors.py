"""The errors of templates: the reason, with line and column."""

from wharf.languages.source_locations import find_location


class TemplateError(Exception):
    """A template that cannot be parsed or rendered, with the reason and its line and column, counted from 1."""

    def __init__(self, problem: str, source: str, offset: int, fix: str = "") -> None:
        """`problem` says what is wrong, and `fix` how to correct it. The reason is both of them."""
        self.problem = problem
        self.fix = fix
        self.offset = offset
        self.reason = reason = f"{problem}: {fix}" if fix else problem
        self.line, self.column = find_location(source, offset)
        super().__init__(f"line {self.line}, column {self.column}: {reason}")


class EvaluationError(Exception):
    """A function or a value rejects its arguments. The renderer adds the location and raises `TemplateError`."""
