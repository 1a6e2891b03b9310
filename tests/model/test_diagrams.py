"""The page of states is what the tables say."""

from pathlib import Path

from wharf.model.diagrams import page
from wharf.model.transitions import MACHINES

STATES_PAGE = Path(__file__).parents[2] / "docs" / "states.md"


def test_the_page_of_states_is_drawn_from_the_tables_in_force() -> None:
    assert STATES_PAGE.read_text() == page(), "stale: run `python -m wharf.model.diagrams > docs/states.md`"


def test_every_step_of_every_table_is_drawn() -> None:
    drawn = page().splitlines()

    for machine in MACHINES:
        for step in machine.steps:
            assert f"    {step.source or '[*]'} --> {step.target}" in drawn
