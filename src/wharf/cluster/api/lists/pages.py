"""List pages: the records that pass all tests, up to the page size, and the token of the next page.

A short list is tested in one step. A long list is read from a snapshot and tested in slices.
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
"""Limits the records tested in the first step of a page."""


class ListPage:
    """One page of a list: its records, and the token that names the first record of the next page.

    Both are valid once `is_complete` is true: after `read_from` for a short list, else after `finish`. Call `close` if
    the page is abandoned before that.
    """

    def __init__(self, tests: Sequence[RecordTest], *, per_page: int, make_token: Callable[[Any], str]) -> None:
        self._tests = tests
        self._per_page = per_page
        self._page_size = max(0, per_page)
        self._make_token = make_token
        self._batches: Iterator[list[Any]] = iter(())
        self._snapshot: TableSnapshot[Any] | None = None
        self.records: list[Any] = []
        self.next_token = ""
        self.is_complete = False

    @property
    def is_small(self) -> bool:
        """Whether the page is complete and small enough to encode without yielding to the event loop."""
        return self.is_complete and len(self.records) <= RECORDS_PER_STEP

    def read_from(self, listing: Listing[Any], token: str, *, is_reversed: bool) -> None:
        """Read and test the first records of the list from the page token on.

        If these few records complete the page, it is complete on return. Otherwise this only prepares batches of the
        remaining records, which `finish` tests: from a snapshot of the list, if the listing can open one.
        """
        records = iter(listing.iterate(token, is_reversed))
        # First the page size plus the record that the next token names, then one more step.
        steps = (
            (min(self._page_size + 1, MAX_CHECKED_RECORDS), RECORDS_PER_STEP) if self._per_page else (RECORDS_PER_STEP,)
        )
        for step_size in steps:
            found = list(islice(records, step_size))
            self._test_records(found)
            if len(found) < step_size:
                self.is_complete = True
            if self.is_complete:
                return
        if listing.open_snapshot is not None:
            self.records = []  # Start over from the snapshot; only few records were tested.
            snapshot = self._snapshot = listing.open_snapshot(token, is_reversed)
            self._batches = iter(lambda: snapshot.read_next(RECORDS_PER_STEP), [])
        else:
            rest = list(records)
            self._batches = (rest[start : start + RECORDS_PER_STEP] for start in range(0, len(rest), RECORDS_PER_STEP))

    async def finish(self) -> None:
        """Test the remaining records in batches until the page is full or the list ends; then close the snapshot.

        Other tasks run between two batches.
        """
        try:
            while not self.is_complete:
                batch = next(self._batches, None)
                if batch is None:
                    self.is_complete = True
                    return
                self._test_records(batch)
                await yield_to_loop()
        finally:
            self.close()

    def close(self) -> None:
        """Release the snapshot of the list, if one was opened."""
        if self._snapshot is not None:
            self._snapshot.close()

    def _test_records(self, records: Iterable[Any]) -> None:
        """Append the records that pass all tests to the page, until it is full. Raises `Refusal` if a filter fails.

        The first record that no longer fits completes the page and becomes its next token.
        """
        for test in self._tests:
            records = filter(test, records)
        try:
            if not self._per_page:
                self.records.extend(records)
                return
            for record in records:
                if len(self.records) == self._page_size:
                    self.next_token = self._make_token(record)
                    self.is_complete = True
                    return
                self.records.append(record)
        except FilterEvaluationError as error:
            raise invalid_request(f"failed to read result page: {error.text}") from error
