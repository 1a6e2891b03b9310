"""Where the time goes in this process, found by looking at its threads again and again."""

import collections
import sys
import threading
from types import FrameType
from typing import Final

LOOKS_PER_S: Final = 100
DEEPEST: Final = 100


def sample(seconds: float) -> str:
    """Folded stacks: functions from the outermost on, joined by `;`, then how often that was seen. Call on a thread of its
    own; it leaves itself out.
    """
    own = threading.get_ident()
    seen: collections.Counter[str] = collections.Counter()
    pause = threading.Event()
    for _ in range(max(1, round(seconds * LOOKS_PER_S))):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                seen[f"{names.get(ident, ident)};{_folded(frame)}"] += 1
        pause.wait(1 / LOOKS_PER_S)
    return "".join(f"{stack} {count}\n" for stack, count in seen.most_common())


def _folded(frame: FrameType | None) -> str:
    calls: list[str] = []
    while frame is not None and len(calls) < DEEPEST:
        module = frame.f_globals.get("__name__", "?")
        calls.append(f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(calls))
