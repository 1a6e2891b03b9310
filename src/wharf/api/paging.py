"""The page of a list: the records that pass all tests, as many as were asked for, and the token of the next one.

A short list is chosen from in one step. A long one is taken as it stands, and chosen from in slices.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from wharf.api.encoding import AT_ONCE, pause
from wharf.api.listing import Listing
from wharf.filters import NotReadable
from wharf.model.refusal import invalid
from wharf.state.still import Still

Accepts = Callable[[Any], bool]

LOOKED_AT_MAX: Final = 2_000
"""Records that are looked at in one step, where nothing has to be asked of them."""


class Page:
    """`records` and `next_token` count when it is whole: at once, or after `finish`. Call `end` where it is left early."""

    def __init__(self, tests: Sequence[Accepts], *, per_page: int, token_of: Callable[[Any], str]) -> None:
        self._tests = tests
        self._per_page = per_page
        self._room = max(0, per_page)
        self._token_of = token_of
        self._batches: Iterator[list[Any]] = iter(())
        self._still: Still[Any] | None = None
        self.records: list[Any] = []
        self.next_token = ""
        self.is_whole = False

    @property
    def is_short(self) -> bool:
        """Whole, and not worth slices."""
        return self.is_whole and len(self.records) <= AT_ONCE

    def take_from(self, listing: Listing[Any], token: str, *, reverse: bool) -> None:
        """In one step: the whole page if that is soon found, else what is listed, as it stands."""
        records = iter(listing.begin(token, reverse))
        steps = (min(self._room + 1, LOOKED_AT_MAX), AT_ONCE) if self._per_page else (AT_ONCE,)
        for looked in steps:
            found = list(islice(records, looked))
            self._choose(found)
            if len(found) < looked:
                self.is_whole = True
            if self.is_whole:
                return
        if listing.still is not None:
            self.records = []  # From the beginning again: what was looked at is little.
            still = self._still = listing.still(token, reverse)
            self._batches = iter(lambda: still.take(AT_ONCE), [])
        else:
            rest = list(records)
            self._batches = (rest[start : start + AT_ONCE] for start in range(0, len(rest), AT_ONCE))

    async def finish(self) -> None:
        """Choose from all that was taken."""
        try:
            while not self.is_whole:
                batch = next(self._batches, None)
                if batch is None:
                    self.is_whole = True
                    return
                self._choose(batch)
                await pause()
        finally:
            self.end()

    def end(self) -> None:
        if self._still is not None:
            self._still.end()

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
                    self.is_whole = True
                    return
                self.records.append(record)
        except NotReadable as error:
            raise invalid(f"failed to read result page: {error.text}") from error
