"""How a serving process runs Python's collector of cycles.

Records hold no cycles and are not tracked, so what the collector finds is little: tracebacks, tasks, closed
connections. What it costs is not: it walks everything it tracks, and a loop stands still meanwhile.
"""

import gc
from typing import Final

YOUNG: Final = 50_000
"""Containers made before the young ones are looked at: some hundreds of requests, some tens of thousands of changes."""

MIDDLE: Final = 20
OLD: Final = 50


def tune_collector() -> None:
    """Call when the process starts: loading makes millions of containers, and none of them is garbage."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)


def freeze_loaded() -> None:
    """Call once the state is loaded, before anybody is served: what is there now is never walked again."""
    gc.collect()
    gc.freeze()
