"""Dispatches the events of a selector to the callbacks that are registered as their data."""

import selectors
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def iter_callbacks(
    selector: selectors.BaseSelector, ready: Sequence[tuple[selectors.SelectorKey, int]]
) -> Iterator[Callable[[], Any]]:
    """Yield the callbacks of the ready descriptors, one at a time.

    A descriptor that an earlier callback has closed is skipped: its number may already belong to another file.
    """
    for key, _ in ready:
        if selector.get_map().get(key.fd) is key:
            yield key.data
