"""Limits of a search."""

import msgspec

from wharf.contract.model.refusal import invalid_request


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a search, so that one request cannot occupy a server.

    1,000 jobs of two groups take about 9 ms, 1,000 allocations about 2 ms. So the longest search takes about a second,
    in steps of 1 to 2 ms.
    """

    is_fuzzy_enabled: bool
    max_examined_records: int  # In each table.
    max_results: int  # Of a fuzzy search, for each kind of record.
    min_query_bytes: int  # The shortest text of a fuzzy search.

    def check_fuzzy_query(self, text: str) -> None:
        """Raise if fuzzy search is disabled, or if the searched text is too short."""
        if not self.is_fuzzy_enabled:
            raise invalid_request("fuzzy search is not enabled")
        length = len(text.encode())
        if length < self.min_query_bytes:
            raise invalid_request(
                f"fuzzy search query must be at least {self.min_query_bytes} characters, got {length}"
            )
