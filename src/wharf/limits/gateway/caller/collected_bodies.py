"""The memory of bodies that the gateway collects before it can decide about their requests."""

from collections import OrderedDict
from typing import Final, Protocol

MAX_COLLECTED_BYTES: Final = 64 << 20
"""Bodies that are collected at a time, of all callers; limits memory."""


class BodyOwner(Protocol):
    """The connection of a caller whose body is collected."""

    def refuse_collected_body(self) -> None:
        """Refuse the request and discard its body."""


class CollectedBodies:
    """Counts the bytes of collected bodies. If they are too many, the body that began first is discarded.

    The body of an honest caller is complete after a moment. So callers that never complete their bodies cannot use up the
    memory for all others.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self._sizes: OrderedDict[BodyOwner, int] = OrderedDict()
        """The bytes of each incomplete body, in the order in which the bodies began."""
        self._complete_sizes: dict[BodyOwner, int] = {}
        """The bytes of each complete body whose request is not decided yet."""

    def add(self, owner: BodyOwner, byte_count: int) -> bool:
        """Count bytes of a body that have arrived. Return false if this body was discarded."""
        self._sizes[owner] = self._sizes.get(owner, 0) + byte_count
        self.total_bytes += byte_count
        while self.total_bytes > MAX_COLLECTED_BYTES and self._sizes:
            oldest = next(iter(self._sizes))
            self.discard(oldest)
            oldest.refuse_collected_body()
        return owner in self._sizes

    def complete(self, owner: BodyOwner) -> None:
        """Discard this body no more: it is complete, and its request is about to be decided."""
        self._complete_sizes[owner] = self._sizes.pop(owner, 0)

    def discard(self, owner: BodyOwner) -> None:
        """Count an incomplete body no longer. A complete one counts until its request is decided."""
        self.total_bytes -= self._sizes.pop(owner, 0)

    def end(self, owner: BodyOwner) -> None:
        """Count a complete body no longer: its request is decided."""
        self.total_bytes -= self._complete_sizes.pop(owner, 0)
