"""When a store is held for away, and when it is tried again. A pure machine."""

from enum import Enum

import msgspec


class BreakerState(Enum):
    CLOSED = "closed"
    """Requests ask the store."""
    OPEN = "open"
    """No request asks. One probe, which no request waits for, finds out when the store is back."""


class Breaker(msgspec.Struct):
    losses_most: int = 3
    """So many losses running, and the store is held for away."""
    state: BreakerState = BreakerState.CLOSED
    losses: int = 0
    opened: int = 0
    """How often it has opened."""

    @property
    def is_open(self) -> bool:
        return self.state is BreakerState.OPEN

    def note_answer(self) -> None:
        """An answer in time. Late ones of before say nothing about now, so an open breaker stays open."""
        self.losses = 0

    def note_loss(self) -> bool:
        """No answer in time. True if this opened it."""
        self.losses += 1
        if self.is_open or self.losses < self.losses_most:
            return False
        self.state = BreakerState.OPEN
        self.opened += 1
        return True

    def note_probe(self) -> None:
        """The store has answered a probe."""
        self.state = BreakerState.CLOSED
        self.losses = 0
