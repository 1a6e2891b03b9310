"""The turns of a selector's loop: who is called for what it has heard. It registers nothing, and closes nothing."""

import selectors
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def list_callbacks(
    selector: selectors.BaseSelector, ready: Sequence[tuple[selectors.SelectorKey, int]]
) -> Iterator[Callable[[], Any]]:
    """What was registered for each, one after the other. What an earlier call of the same turn has closed is left out,
    whoever has its number by then: it would read, or close, what belongs to another."""
    for key, _ in ready:
        if selector.get_map().get(key.fd) is key:
            yield key.data
