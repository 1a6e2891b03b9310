"""Which callbacks are called in one pass of the selector loop."""

import os
import selectors

from wharf.node.supervisor.selector_loop import iter_callbacks


def test_the_callback_of_a_descriptor_closed_in_this_pass_is_not_called() -> None:
    called: list[str] = []
    (first, first_end), (second, second_end) = os.pipe(), os.pipe()
    with selectors.DefaultSelector() as selector:

        def replace(closed: int) -> None:
            called.append("first")
            selector.unregister(closed)
            os.dup2(first_end, closed)  # Closes the descriptor and reuses its number.
            selector.register(closed, selectors.EVENT_WRITE, lambda: called.append("reused descriptor"))

        for descriptor, closed in ((first, second), (second, first)):
            selector.register(descriptor, selectors.EVENT_READ, lambda closed=closed: replace(closed))
        for end in (first_end, second_end):
            os.write(end, b"x")
        events = selector.select(0)
        for call in iter_callbacks(selector, events):
            call()

        assert (2, ["first"]) == (len(events), called)
    for descriptor in (first, first_end, second, second_end):
        os.close(descriptor)
