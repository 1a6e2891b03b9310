"""Writes the truth table of needs into docs/runs.md: `python -m wharf.cluster.scheduling.steps.reference`.

The text around the markers in that page is written by hand and not changed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wharf.cluster.scheduling.steps.needs import ENDED_OUTCOMES, TRUTH_TABLE, StepVerdict
from wharf.contract.model.jobs.step_states import StepOutcome
from wharf.contract.model.jobs.steps import NeedWhen

PAGE: Final = "docs/runs.md"
BEGIN_MARKER: Final = (
    "<!-- Written by `python -m wharf.cluster.scheduling.steps.reference`, up to the next comment. -->"
)
END_MARKER: Final = "<!-- The end of the truth table. -->"
OUTCOME_TITLES: Final = {
    StepOutcome.SUCCEEDED: "succeeded",
    StepOutcome.FAILED: "failed",
    StepOutcome.SKIPPED_BY_CONDITION: "skipped by its own `If`",
    StepOutcome.SKIPPED_BY_NEED: "skipped because of its need",
    StepOutcome.CANCELED_BEFORE_BEGIN: "canceled before it began",
    StepOutcome.CANCELED_WHILE_RUNNING: "canceled while it ran",
}
VERDICT_TITLES: Final = {
    StepVerdict.GO: "**begins**",
    StepVerdict.SKIP: "skipped",
    StepVerdict.GO_IF_OPTIONAL: "skipped; **begins** with `Optional`",
}


def render_page(page: str) -> str:
    """Return the page with its table replaced by the current one."""
    before, _, rest = page.partition(BEGIN_MARKER)
    after = rest.partition(END_MARKER)[2]
    return "\n".join([f"{before}{BEGIN_MARKER}", "", *_render_rows(), "", f"{END_MARKER}{after}"])


def _render_rows() -> Iterator[str]:
    """Yield the lines of the table: a row for each way in which the needed step ended, a column for each `When`."""
    yield "| The needed step | " + " | ".join(f"`{when}`" for when in NeedWhen) + " |"
    yield "|---" * (len(NeedWhen) + 1) + "|"
    for column, outcome in enumerate(ENDED_OUTCOMES):
        cells = (VERDICT_TITLES[TRUTH_TABLE[when][column]] for when in NeedWhen)
        yield f"| {OUTCOME_TITLES[outcome]} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    path = Path(PAGE)
    path.write_text(render_page(path.read_text()))
