"""The page of states is what the tables say."""

from pathlib import Path

from wharf.contract.model.state_machines.diagrams import render_page
from wharf.contract.model.state_machines.transitions import STATE_MACHINES

STATES_PAGE = Path(__file__).parents[3] / "docs" / "states.md"


def test_the_page_of_states_is_drawn_from_the_tables_in_force() -> None:
    assert STATES_PAGE.read_text() == render_page(), (
        "stale: run `python -m wharf.contract.model.state_machines.diagrams > docs/states.md`"
    )


def test_every_step_of_every_table_is_drawn() -> None:
    drawn = render_page().splitlines()

    for machine in STATE_MACHINES:
        for step in machine.transitions:
            assert f"    {step.source or '[*]'} --> {step.target}" in drawn
