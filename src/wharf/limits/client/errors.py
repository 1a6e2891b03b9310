"""What a caller is told when waiting does not help, or would take longer than was allowed."""


class LimitError(Exception):
    """A limit stands in the way of a request. `until_ns` is when it may be tried again, as this machine's clock has it."""

    def __init__(self, told: str, *, until_ns: int) -> None:
        super().__init__(told)
        self.until_ns = until_ns


class PrimaryExceeded(LimitError):
    """Refused for its primary limit, again and again."""


class SecondaryExceeded(LimitError):
    """Refused for a secondary limit, again and again."""


class WaitTooLong(LimitError):
    """It would have to wait longer than the caller allows. Nothing was sent."""
