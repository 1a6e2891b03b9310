"""The page of a list: the records that pass all tests, as many as were asked for, and the token of the next one.

A short list is chosen from in one step. A long one is taken as it stands, and chosen from in slices.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from wharf.cluster.api.lists.listing import Listing
from wharf.cluster.api.replies.encoding import RECORDS_PER_STEP, yield_to_loop
from wharf.cluster.state.table_snapshot import TableSnapshot
from wharf.contract.model.refusal import invalid_request
from wharf.languages.filters import FilterEvaluationError

RecordTest = Callable[[Any], bool]

MAX_CHECKED_RECORDS: Final = 2_000
"""Records that are looked at in one step, where nothing has to be asked of them."""


class ListPage:
    """`records` and `next_token` count when it is whole: at once, or after `finish`. Call `end` where it is left early."""

    def __init__(self, tests: Sequence[RecordTest], *, per_page: int, make_token: Callable[[Any], str]) -> None:
        self._tests = tests
        self._per_page = per_page
        self._room = max(0, per_page)
        self._token_of = make_token
        self._batches: Iterator[list[Any]] = iter(())
        self._still: TableSnapshot[Any] | None = None
        self.records: list[Any] = []
        self.next_token = ""
        self.is_complete = False

    @property
    def is_small(self) -> bool:
        """Whole, and not worth slices."""
        return self.is_complete and len(self.records) <= RECORDS_PER_STEP

    def read_from(self, listing: Listing[Any], token: str, *, is_reversed: bool) -> None:
        """In one step: the whole page if that is soon found, else what is listed, as it stands."""
        records = iter(listing.iterate(token, is_reversed))
        steps = (min(self._room + 1, MAX_CHECKED_RECORDS), RECORDS_PER_STEP) if self._per_page else (RECORDS_PER_STEP,)
        for looked in steps:
            found = list(islice(records, looked))
            self._choose(found)
            if len(found) < looked:
                self.is_complete = True
            if self.is_complete:
                return
        if listing.open_snapshot is not None:
            self.records = []  # From the beginning again: what was looked at is little.
            still = self._still = listing.open_snapshot(token, is_reversed)
            self._batches = iter(lambda: still.read_next(RECORDS_PER_STEP), [])
        else:
            rest = list(records)
            self._batches = (rest[start : start + RECORDS_PER_STEP] for start in range(0, len(rest), RECORDS_PER_STEP))

    async def finish(self) -> None:
        """Choose from all that was taken."""
        try:
            while not self.is_complete:
                batch = next(self._batches, None)
                if batch is None:
                    self.is_complete = True
                    return
                self._choose(batch)
                await yield_to_loop()
        finally:
            self.close()

    def close(self) -> None:
        if self._still is not None:
            self._still.close()

    def _choose(self, records: Iterable[Any]) -> None:
        for test in self._tests:
            records = filter(test, records)
        try:
            if not self._per_page:
                self.records.extend(records)
                return
            for record in records:
                if len(self.records) == self._room:
                    self.next_token = self._token_of(record)
                    self.is_complete = True
                    return
                self.records.append(record)
        except FilterEvaluationError as error:
            raise invalid_request(f"failed to read result page: {error.text}") from error
