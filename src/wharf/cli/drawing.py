"""Numbers as a line of small bars."""

from collections.abc import Sequence
from typing import Final

BARS: Final = "▁▂▃▄▅▆▇█"
WIDTH: Final = 20


def drawn(numbers: Sequence[float], *, top: float) -> str:
    """Each bar the greatest of as many numbers as it stands for. The highest bar is `top`, or what goes beyond it."""
    if not numbers:
        return ""
    each = -(-len(numbers) // WIDTH)
    # From the end: the last bar is always a whole one.
    begin = len(numbers) % each
    groups = [numbers[:begin]] if begin else []
    groups += [numbers[at : at + each] for at in range(begin, len(numbers), each)]
    highest = max(top, *numbers)
    return "".join(BARS[min(len(BARS) - 1, int(max(group) / highest * len(BARS)))] for group in groups)
