"""docs/states.md is up to date with the state tables."""

from pathlib import Path

from wharf.contract.model.state_machines.diagrams import render_page
from wharf.contract.model.state_machines.transitions import STATE_MACHINES

STATES_PAGE = Path(__file__).parents[3] / "docs" / "states.md"


def test_the_states_page_is_up_to_date() -> None:
    assert STATES_PAGE.read_text() == render_page(), (
        "stale: run `python -m wharf.contract.model.state_machines.diagrams > docs/states.md`"
    )


def test_every_transition_is_in_a_diagram() -> None:
    drawn = render_page().splitlines()

    for machine in STATE_MACHINES:
        for step in machine.transitions:
            assert f"    {step.source or '[*]'} --> {step.target}" in drawn
