"""The texts that steps left for later ones, as the page of their run shows them: the first ones, shortened."""

from typing import Final

import msgspec

from wharf.contract.model.jobs.step_outputs import StepOutputsView
from wharf.web.rendering import count_noun
from wharf.web.views.files import show_text

MAX_SUMMARY_TEXTS: Final = 3
"""Outputs of a step that the page of its run shows."""
MAX_SUMMARY_CHARS: Final = 80
"""Characters of one of these outputs, which may be 64 KiB long."""


class OutputText(msgspec.Struct, frozen=True):
    """A text that the program of a step wrote for later steps."""

    name: str
    text: str


class OutputSummary(msgspec.Struct, frozen=True):
    """The first outputs of a step, each as one short line."""

    texts: tuple[OutputText, ...]
    more: str
    """What the page of the step has besides, such as `2 more outputs`; empty if nothing."""


def summarize_outputs(outputs: StepOutputsView | None, *, is_array: bool) -> OutputSummary | None:
    """Return the first outputs of a step, or `None` if it has none. Of an array only their number: they belong to elements."""
    if outputs is None or not outputs.elements:
        return None
    if is_array:
        return OutputSummary((), f"outputs of {count_noun(len(outputs.elements), 'element', 'elements')}")
    element = outputs.elements[0]
    texts = tuple(OutputText(name, shorten(text)) for name, text in element.texts.items())
    more = len(texts) - MAX_SUMMARY_TEXTS
    parts = [count_noun(more, "more output", "more outputs")] if more > 0 else []
    parts += ["why outputs are missing"] if element.problem else []
    return OutputSummary(texts[:MAX_SUMMARY_TEXTS], " and ".join(parts))


def shorten(text: str) -> str:
    """Return a text as one short line."""
    beginning = text[: 2 * MAX_SUMMARY_CHARS]
    line = show_text(" ".join(beginning.split()))
    is_whole = beginning == text and len(line) <= MAX_SUMMARY_CHARS
    return line if is_whole else f"{line[:MAX_SUMMARY_CHARS]}…"
