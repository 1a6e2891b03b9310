"""What can go wrong with the engine, told in its own words."""


class EngineUnreachable(Exception):
    """Nobody answers at the socket, or the answer broke off. Whether the engine did what it was asked is unknown."""


class EngineRejected(Exception):
    """The engine answered, and said no."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status = status


class EngineNotFound(EngineRejected):
    """The image, container or volume that was named does not exist."""
