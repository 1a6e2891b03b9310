"""How far a search goes."""

import msgspec

from wharf.model.refusal import invalid


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`examined_max`: records of each table that are looked at; `results_max`: what a context of a fuzzy search shows.

    A thousand jobs of two groups take a fuzzy search about nine milliseconds of work, a thousand allocations two. So the
    longest is about a second, in steps of a millisecond or two.
    """

    is_fuzzy_enabled: bool = True
    examined_max: int = 100_000
    results_max: int = 100
    term_length_min: int = 2

    def check(self, text: str) -> None:
        """Raises where a fuzzy search of this text is not made."""
        if not self.is_fuzzy_enabled:
            raise invalid("fuzzy search is not enabled")
        length = len(text.encode())
        if length < self.term_length_min:
            raise invalid(f"fuzzy search query must be at least {self.term_length_min} characters, got {length}")
