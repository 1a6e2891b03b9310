"""Draws the tables of states as one page of markdown: a picture, the causes, and who moves each state on.

`python -m wharf.model.diagrams > docs/states.md` writes the page; a test tells when it is stale.
"""

import sys
from collections.abc import Iterator

from wharf.model.transitions import MACHINES, AnyMachine

OPENING = """\
# States

Drawn from the tables in `wharf.model.transitions` by `python -m wharf.model.diagrams`; do not edit this page.
A step that is not in a table is refused, and the refusal tells the record's story. Every state that is not an end has
an owner, who moves the record on, and a deadline.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([OPENING, *(_section(machine) for machine in MACHINES)])


def _section(machine: AnyMachine) -> str:
    title = machine.name[0].upper() + machine.name[1:]
    return "\n".join([f"## {title}", "", *_picture(machine), "", *_steps(machine), "", *_custody(machine), ""])


def _picture(machine: AnyMachine) -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    for step in machine.steps:
        yield f"    {step.source or '[*]'} --> {step.target}"
    for state in machine.states:
        # A record may leave some ends again (a lost allocation whose node comes back), but need not.
        if state in machine.terminal:
            yield f"    {state} --> [*]"
    yield "```"


def _steps(machine: AnyMachine) -> Iterator[str]:
    yield "| from | to | because |"
    yield "|---|---|---|"
    for step in machine.steps:
        only = f" ({step.feature} only)" if step.feature else ""
        yield f"| {step.source or '(new)'} | {step.target} | {step.cause}{only} |"


def _custody(machine: AnyMachine) -> Iterator[str]:
    yield "| state | owner | deadline |"
    yield "|---|---|---|"
    for state in machine.states:
        custody = machine.custody_of(state)
        if custody is None:
            yield f"| {state} | - | an end |"
        else:
            yield f"| {state} | {custody.owner} | {custody.deadline} |"


if __name__ == "__main__":
    sys.stdout.write(page())
