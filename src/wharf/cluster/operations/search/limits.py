"""Limits of a search."""

import msgspec

from wharf.contract.model.refusal import invalid_request


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a search: records examined in each table, and results of a fuzzy search in each context.

    They bound the work of one search: 1,000 jobs of two groups take about 9 ms, 1,000 allocations about 2 ms. So the
    longest search takes about a second, in steps of 1 to 2 ms.
    """

    is_fuzzy_enabled: bool = True
    max_examined_records: int = 100_000
    max_results: int = 100
    min_query_bytes: int = 2

    def check_fuzzy_query(self, text: str) -> None:
        """Raise if fuzzy search is disabled or the text is too short."""
        if not self.is_fuzzy_enabled:
            raise invalid_request("fuzzy search is not enabled")
        length = len(text.encode())
        if length < self.min_query_bytes:
            raise invalid_request(
                f"fuzzy search query must be at least {self.min_query_bytes} characters, got {length}"
            )
