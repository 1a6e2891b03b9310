"""The errors of calls to the container engine."""


class EngineUnreachable(Exception):
    """The engine returned no valid response. It is not known whether it carried out the request."""


class EngineRejected(Exception):
    """The engine answered with an error. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineNotFound(EngineRejected):
    """The image, container or volume does not exist."""
