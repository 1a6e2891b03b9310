"""The port of sinks: something that takes batches of encoded records, or says why it does not."""

from collections.abc import Sequence
from typing import Protocol


class SinkUnavailable(Exception):
    """The receiver does not take records now. They are sent again later. The text is the reason, for the log."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """How long the receiver asked to wait; `None` if it did not."""


class RecordsRejected(Exception):
    """The receiver refuses these records for their content, so sending them again does not help. The text is the reason."""


class SinkBatch(Protocol):
    """Records to send together. The same batch has the same name when it is sent again."""

    @property
    def name(self) -> str: ...
    @property
    def lines(self) -> Sequence[bytes]:
        """The records, without line feeds."""
        ...


class Sink(Protocol):
    """Takes batches of records."""

    async def send(self, batch: SinkBatch) -> int:
        """Send all records of a batch. Return how many the receiver has rejected although it accepted the batch.

        Raises `SinkUnavailable`, or `RecordsRejected` if the receiver accepted none of them. The caller limits the time
        and cancels a call that is too slow.
        """
        ...

    async def close(self) -> None:
        """Close connections and files."""
        ...
