"""The errors of calls to the container engine."""


class EngineUnreachable(Exception):
    """No answer, or a broken one. The engine may have carried out the request or not."""


class EngineRejected(Exception):
    """The engine answered with an error. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineNotFound(EngineRejected):
    """The image, container or volume does not exist."""
