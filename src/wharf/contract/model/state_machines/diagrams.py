"""Draws the tables of states as one page of markdown: a picture, the causes, and who moves each state on.

`python -m wharf.contract.model.state_machines.diagrams > docs/states.md` writes the page; a test tells when it is stale.
"""

import sys
from collections.abc import Iterator

from wharf.contract.model.state_machines.transitions import STATE_MACHINES, AnyStateMachine

PAGE_HEADER = """\
# States

Drawn from the tables in `wharf.contract.model.state_machines.transitions` by `python -m wharf.contract.model.state_machines.diagrams`; do not edit this page.
A step that is not in a table is refused, and the refusal tells the record's story. Every state that is not an end has
an owner, who moves the record on, and a deadline.
"""


def render_page() -> str:
    """The whole page."""
    return "\n".join([PAGE_HEADER, *(_section(machine) for machine in STATE_MACHINES)])


def _section(machine: AnyStateMachine) -> str:
    title = machine.name[0].upper() + machine.name[1:]
    return "\n".join([f"## {title}", "", *_picture(machine), "", *_steps(machine), "", *_custody(machine), ""])


def _picture(machine: AnyStateMachine) -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    for step in machine.transitions:
        yield f"    {step.source or '[*]'} --> {step.target}"
    for state in machine.states:
        # A record may leave some ends again (a lost allocation whose node comes back), but need not.
        if state in machine.terminal_states:
            yield f"    {state} --> [*]"
    yield "```"


def _steps(machine: AnyStateMachine) -> Iterator[str]:
    yield "| from | to | because |"
    yield "|---|---|---|"
    for step in machine.transitions:
        only = f" ({step.feature} only)" if step.feature else ""
        yield f"| {step.source or '(new)'} | {step.target} | {step.cause}{only} |"


def _custody(machine: AnyStateMachine) -> Iterator[str]:
    yield "| state | owner | deadline |"
    yield "|---|---|---|"
    for state in machine.states:
        custody = machine.find_ownership(state)
        if custody is None:
            yield f"| {state} | - | an end |"
        else:
            yield f"| {state} | {custody.owner} | {custody.deadline} |"


if __name__ == "__main__":
    sys.stdout.write(render_page())
