"""How a serving process runs Python's collector of cycles.

Records hold no cycles and are not tracked, so what the collector finds is little: tracebacks, tasks, closed
connections. What it costs is not: it walks everything it tracks, and a loop stands still meanwhile. Of the state it tracks
the packed maps, one for each allocation that has begun to run since the start; so it looks often, at few, and lets
what has lived twice alone for long.
"""

import gc
from typing import Final

YOUNG: Final = 10_000
"""Containers that came and stayed before the young ones are looked at: a millisecond or two for that many."""

MIDDLE: Final = 1
OLD: Final = 3_000


def tune_collector() -> None:
    """Call when the process starts: loading makes millions of containers, and none of them is garbage."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)


def freeze_loaded() -> None:
    """Call once the state is loaded, before anybody is served: what is there now is never walked again."""
    gc.collect()
    gc.freeze()
