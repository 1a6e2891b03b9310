"""What the brain asks of an election; `engines.election` answers."""

from typing import Protocol

from wharf.model.changes import Condition


class Leadership(Protocol):
    """Held from an election until it is lost. Losing it needs no one's word: it ends by itself when not renewed."""

    def is_held(self) -> bool:
        """False in good time before anybody else can be elected."""
        ...

    def condition(self) -> Condition:
        """That the leader's record is still the one which this election created. Every leader's write carries it."""
        ...

    async def lost(self) -> None:
        """Returns when the leadership is lost."""
        ...

    async def hand_over(self, heir: str) -> bool:
        """End the leadership in favour of another member. False when that could not be written."""
        ...


class Election(Protocol):
    async def campaign(self) -> Leadership:
        """Returns when this member is elected."""
        ...
