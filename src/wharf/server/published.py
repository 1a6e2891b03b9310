"""Which figures are published, and under which labels: what the configuration says of it.

Nothing is measured less for it; it is only not told.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

PUBLISH: Final = "+"
WITHHOLD: Final = "-"


class Published(msgspec.Struct, frozen=True):
    """`prefixes`: each after `+` or `-`. `host`: a label of every gauge, where it is not empty."""

    prefixes: Sequence[str] = ()
    by_default: bool = True
    host: str = ""

    def has(self, name: str) -> bool:
        """The longest prefix of the name decides; of two that say both, the one that withholds."""
        said = [prefix for prefix in self.prefixes if name.startswith(prefix[1:])]
        if not said:
            return self.by_default
        longest = max(len(prefix) for prefix in said)
        return not any(prefix[:1] == WITHHOLD for prefix in said if len(prefix) == longest)

    def labels(self, labels: dict[str, str]) -> dict[str, str]:
        return {**labels, "host": self.host} if self.host else labels


def problem_of(prefix: str) -> str:
    """What is wrong with a prefix as people write it; empty where nothing is."""
    if prefix[:1] in (PUBLISH, WITHHOLD) and prefix[1:].strip():
        return ""
    return f'expected prefixes of names after + or -, such as "-wharf.http", given "{prefix}"'
