"""Render the state tables as one Markdown page: a diagram, the transitions with their causes, and the owner of each state.

`python -m wharf.contract.model.state_machines.diagrams > docs/states.md` writes the page; a test fails if it is out of date.
"""

import sys
from collections.abc import Iterator

from wharf.contract.model.state_machines.transitions import STATE_MACHINES, AnyStateMachine

PAGE_HEADER = """\
# States

This page shows the states of jobs, evaluations, allocations, deployments, nodes and tasks, and the changes of state that are
allowed. Every other change is rejected, and logged with the history of the record.

For each state that is not terminal, the second table of a section names the owner and the deadline. The owner is the component
that moves the record to its next state. It does so at the deadline at the latest.

Do not edit this page. `python -m wharf.contract.model.state_machines.diagrams` writes it from the tables in
`wharf.contract.model.state_machines.transitions`.
"""


def render_page() -> str:
    """Return the whole page of states in Markdown."""
    return "\n".join([PAGE_HEADER, *(_render_section(machine) for machine in STATE_MACHINES)])


def _render_section(machine: AnyStateMachine) -> str:
    """Return the section of one state machine in Markdown: title, diagram and two tables."""
    title = machine.name[0].upper() + machine.name[1:]
    return "\n".join(
        [
            f"## {title}",
            "",
            *_render_diagram(machine),
            "",
            *_render_transitions(machine),
            "",
            *_render_ownership(machine),
            "",
        ]
    )


def _render_diagram(machine: AnyStateMachine) -> Iterator[str]:
    """Yield the lines of a state diagram in the Mermaid language."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    for transition in machine.transitions:
        yield f"    {transition.source or '[*]'} --> {transition.target}"
    for state in machine.states:
        # A record may leave some terminal states again, such as a lost allocation whose node reconnects.
        if state in machine.terminal_states:
            yield f"    {state} --> [*]"
    yield "```"


def _render_transitions(machine: AnyStateMachine) -> Iterator[str]:
    """Yield the lines of the table of allowed transitions with their causes."""
    yield "| from | to | because |"
    yield "|---|---|---|"
    for transition in machine.transitions:
        only = f" ({transition.feature} only)" if transition.feature else ""
        yield f"| {transition.source or '(new)'} | {transition.target} | {transition.cause}{only} |"


def _render_ownership(machine: AnyStateMachine) -> Iterator[str]:
    """Yield the lines of the table that lists for each state what moves the record on, and until when."""
    yield "| state | owner | deadline |"
    yield "|---|---|---|"
    for state in machine.states:
        ownership = machine.find_ownership(state)
        if ownership is None:
            yield f"| {state} | - | terminal state |"
        else:
            yield f"| {state} | {ownership.owner} | {ownership.deadline} |"


if __name__ == "__main__":
    sys.stdout.write(render_page())
