"""Who is called in one turn of a selector's loop."""

import os
import selectors

from wharf.node.supervisor.selector_loop import list_callbacks


def test_what_an_earlier_call_closed_is_not_called_though_its_number_is_given_again() -> None:
    called: list[str] = []
    (first, first_end), (second, second_end) = os.pipe(), os.pipe()
    with selectors.DefaultSelector() as selector:

        def replace_other(other: int) -> None:
            called.append("the first")
            selector.unregister(other)
            os.dup2(first_end, other)  # Closes it, and is there by the same number.
            selector.register(other, selectors.EVENT_WRITE, lambda: called.append("who has its number now"))

        for ours, other in ((first, second), (second, first)):
            selector.register(ours, selectors.EVENT_READ, lambda other=other: replace_other(other))
        for end in (first_end, second_end):
            os.write(end, b"x")
        heard = selector.select(0)
        for call in list_callbacks(selector, heard):
            call()

        assert (2, ["the first"]) == (len(heard), called)
    for each in (first, first_end, second, second_end):
        os.close(each)
