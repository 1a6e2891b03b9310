"""List pages: the records that pass all tests, up to the page size, and the token of the next page.

A short list is tested in one step. A long list is read from a snapshot and tested in slices. A filter that takes too
long for one record is evaluated off the event loop.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from wharf.cluster.api.lists.listing import Listing
from wharf.cluster.api.lists.sorted_snapshot import SortedSnapshot
from wharf.cluster.api.replies.encoding import RECORDS_PER_STEP
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state.table_snapshot import TableSnapshot
from wharf.contract.model.refusal import Refusal, invalid_request
from wharf.languages.filters import Filter, FilterEvaluationError, FilterStepsExceeded

RecordTest = Callable[[Any], bool]

MAX_CHECKED_RECORDS: Final = 2_000
"""Limits the records tested in the first step of a page."""
FILTERED_RECORDS_PER_STEP: Final = 16
"""Records that are tested before the CPU time is checked. A filter whose steps are not counted, or the search for an
access rule, takes up to half a millisecond for each."""
METERED_RECORDS_PER_STEP: Final = 4
"""The same for a filter whose steps are counted: up to two milliseconds for each."""
MAX_STEPS_ON_LOOP: Final = 1_000
"""The steps that a filter may take for one record on the event loop: up to 2 ms. Beyond, it runs off the loop."""


class ListPage:
    """One page of a list: its records, and the token that names the first record of the next page.

    Both are valid once `is_complete` is true: after `read_from` for a short list, else after `finish`. Call `close` if
    the page is abandoned before that.
    """

    def __init__(
        self,
        tests: Sequence[RecordTest],
        record_filter: Filter | None,
        work: SlicedWork,
        *,
        per_page: int,
        make_token: Callable[[Any], str],
        prepare_test: Callable[[SlicedWork], Awaitable[RecordTest]] | None = None,
        error_prefix: str = "failed to read result page: ",
    ) -> None:
        """`tests` are cheap. `work` counts the CPU time of the filter and of the tests. `prepare_test` returns one more test.

        The text of a refusal by the filter begins with `error_prefix`.
        """
        self._error_prefix = error_prefix
        self._tests = list(tests)
        self._prepare_test = prepare_test
        self._filter = record_filter
        self._work = work
        self._runs_off_loop = False
        """Whether the filter has taken too long for a record on the event loop."""
        self._per_page = per_page
        self._page_size = max(0, per_page)
        self._make_token = make_token
        self._batches: Iterator[list[Any]] = iter(())
        self._snapshot: TableSnapshot[Any] | None = None
        self._sorted: SortedSnapshot[Any] | None = None
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
        remaining records, which `finish` tests. A list that must be sorted, or whose test must be prepared, is not read here.
        """
        if listing.open_sorted is not None:
            ordered = self._sorted = listing.open_sorted(token, is_reversed)
            self._batches = iter(lambda: ordered.read_next(RECORDS_PER_STEP), [])
            return
        if self._prepare_test is not None:
            self._prepare_batches(listing, token, is_reversed=is_reversed)
            return
        records = iter(listing.iterate(token, is_reversed))
        # First the page size plus the record that the next token names, then one more step.
        steps = (
            (min(self._page_size + 1, MAX_CHECKED_RECORDS), RECORDS_PER_STEP) if self._per_page else (RECORDS_PER_STEP,)
        )
        for step_size in steps:
            found = list(islice(records, step_size))
            if not self._test_in_slice(found):
                break
            if len(found) < step_size:
                self.is_complete = True
            if self.is_complete:
                return
        self.records = []  # Start over; only few records were tested.
        self._prepare_batches(listing, token, is_reversed=is_reversed)

    def _prepare_batches(self, listing: Listing[Any], token: str, *, is_reversed: bool) -> None:
        """Prepare batches of all records from the page token on: from a snapshot, if the listing can open one."""
        if listing.open_snapshot is not None:
            snapshot = self._snapshot = listing.open_snapshot(token, is_reversed)
            self._batches = iter(lambda: snapshot.read_next(RECORDS_PER_STEP), [])
        else:
            rest = list(listing.iterate(token, is_reversed))
            self._batches = (rest[start : start + RECORDS_PER_STEP] for start in range(0, len(rest), RECORDS_PER_STEP))

    async def finish(self) -> None:
        """Test the remaining records in batches until the page is full or the list ends; then close the snapshot.

        Other tasks run between two batches.
        """
        self._work.restart()
        try:
            if self._prepare_test is not None:
                self._tests.append(await self._prepare_test(self._work))
            if self._sorted is not None:
                await self._sorted.sort(self._work)
            while not self.is_complete:
                batch = next(self._batches, None)
                if batch is None:
                    self.is_complete = True
                    break
                await self._test_batch(batch)
                await self._work.pause()
            if self._sorted is not None:
                await self._sorted.release(self._work)
        finally:
            self.close()

    def close(self) -> None:
        """Release the snapshot of the list, if one was opened."""
        for snapshot in (self._snapshot, self._sorted):
            if snapshot is not None:
                snapshot.close()

    def _test_in_slice(self, records: list[Any]) -> bool:
        """Test these records, or until the slice is over or the page is complete. Return false if the slice is over."""
        for number, part in enumerate(self._split(records)):
            if not number:
                self._work.restart()
            elif self._work.is_slice_over():
                return False
            try:
                self._test_records(part, self._accepts_on_loop)
            except FilterStepsExceeded:
                self._runs_off_loop = True
                return False
            if self.is_complete:
                return True
        return True

    async def _test_batch(self, records: list[Any]) -> None:
        """Test these records until the page is complete, off the loop if the filter takes long. Raises `Refusal`."""
        parts = self._split(records)
        while not self._runs_off_loop:
            part = next(parts, None)
            if part is None or self.is_complete:
                return
            found = len(self.records)
            try:
                self._test_records(part, self._accepts_on_loop)
            except FilterStepsExceeded:
                # Test the part again off the loop.
                del self.records[found:]
                self._runs_off_loop = True
                await self._test_off_loop(part)
            if self._work.is_slice_over():
                await self._work.pause()
        for part in parts:
            if not self.is_complete:
                await self._test_off_loop(part)

    def _split(self, records: list[Any]) -> Iterator[list[Any]]:
        """Yield the records in parts that are tested in one step. The rest is one part once the filter runs off the loop."""
        if (self._filter is None and not self._tests) or len(records) <= METERED_RECORDS_PER_STEP:
            yield records
            return
        start, step_size = 0, FILTERED_RECORDS_PER_STEP
        if self._filter is not None and self._filter.is_metered:
            step_size = METERED_RECORDS_PER_STEP
        while start < len(records):
            if self._runs_off_loop:
                yield records[start:]
                return
            yield records[start : start + step_size]
            start += step_size

    async def _test_off_loop(self, records: list[Any]) -> None:
        """Test these records, with the filter off the loop. Raises `Refusal` if a filter fails or takes too long."""
        assert self._filter is not None, "only a filter takes long"
        for test in self._tests:
            records = list(filter(test, records))
        max_accepted = self._page_size + 1 - len(self.records) if self._per_page else len(records)
        evaluating = partial(_evaluate_filter, self._filter, records, max_accepted)
        accepted = await self._work.run_off_loop(evaluating)
        if isinstance(accepted, FilterEvaluationError):
            raise self._build_refusal(accepted) from accepted
        self._add_records(accepted)

    def _accepts_on_loop(self, record: Any) -> bool:
        """Return whether the filter accepts the record. Raises `FilterStepsExceeded` if that takes long."""
        assert self._filter is not None
        return self._filter.accepts_within(record, MAX_STEPS_ON_LOOP)

    def _test_records(self, records: Iterable[Any], accepts: RecordTest) -> None:
        """Append the records that pass all tests and the filter to the page, until it is full.

        Raises `Refusal` if the filter fails, and `FilterStepsExceeded` if it takes too many steps for a record.
        """
        for test in self._tests:
            records = filter(test, records)
        if self._filter is not None:
            records = filter(accepts if self._filter.is_metered else self._filter.accepts, records)
        try:
            self._add_records(records)
        except FilterStepsExceeded:
            raise
        except FilterEvaluationError as error:
            raise self._build_refusal(error) from error

    def _build_refusal(self, error: FilterEvaluationError) -> Refusal:
        """Return the refusal of a filter that cannot be evaluated for a record."""
        return invalid_request(f"{self._error_prefix}{error.text}")

    def _add_records(self, records: Iterable[Any]) -> None:
        """Append records to the page, until it is full.

        The first record that no longer fits completes the page and becomes its next token.
        """
        if not self._per_page:
            self.records.extend(records)
            return
        for record in records:
            if len(self.records) == self._page_size:
                self.next_token = self._make_token(record)
                self.is_complete = True
                return
            self.records.append(record)


def _evaluate_filter(
    record_filter: Filter, records: Sequence[Any], max_accepted: int, is_budget_over: Callable[[], bool]
) -> list[Any] | FilterEvaluationError:
    """Return the records that the filter accepts, up to `max_accepted`, or the error of the first record that has one.

    Runs off the event loop. Returns early when the budget is used up.
    """
    accepted: list[Any] = []
    try:
        for record in records:
            if len(accepted) >= max_accepted or is_budget_over():
                break
            if record_filter.accepts(record):
                accepted.append(record)
    except FilterEvaluationError as error:
        return error
    return accepted
