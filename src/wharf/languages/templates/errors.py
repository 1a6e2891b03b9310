"""What goes wrong with a template: one sentence, and the place."""


class TemplateError(Exception):
    """A template that is none, or that asks for what cannot be: what is wrong, at which line and column."""

    def __init__(self, reason: str, source: str, offset: int) -> None:
        before = source[:offset]
        self.reason = reason
        self.line = before.count("\n") + 1
        self.column = offset - (before.rfind("\n") + 1) + 1
        super().__init__(f"line {self.line}, column {self.column}: {reason}")


class EvaluationError(Exception):
    """What a function or a value refuses, before anybody knows where in the template it was asked."""
