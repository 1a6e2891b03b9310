"""The errors of calls to the container engine."""


class EngineUnreachable(Exception):
    """The error of a request without a valid response. It is unknown whether the engine carried it out."""


class EngineRejected(Exception):
    """The error of a request that the engine answered with the HTTP error status `status`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineNotFound(EngineRejected):
    """The error of a request for an image, container or volume that does not exist."""
