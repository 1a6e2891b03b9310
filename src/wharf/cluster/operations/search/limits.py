"""How far a search goes."""

import msgspec

from wharf.contract.model.refusal import invalid_request


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`examined_max`: records of each table that are looked at; `results_max`: what a context of a fuzzy search shows.

    A thousand jobs of two groups take a fuzzy search about nine milliseconds of work, a thousand allocations two. So the
    longest is about a second, in steps of a millisecond or two.
    """

    is_fuzzy_enabled: bool = True
    max_examined_records: int = 100_000
    max_results: int = 100
    min_query_bytes: int = 2

    def check_fuzzy_query(self, text: str) -> None:
        """Raises where a fuzzy search of this text is not made."""
        if not self.is_fuzzy_enabled:
            raise invalid_request("fuzzy search is not enabled")
        length = len(text.encode())
        if length < self.min_query_bytes:
            raise invalid_request(
                f"fuzzy search query must be at least {self.min_query_bytes} characters, got {length}"
            )
