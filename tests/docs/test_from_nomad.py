"""The commands of docs/from-nomad.md print what the page shows, and its table of commands is true."""

import re
from pathlib import Path

from tests.agent.processes import running
from tests.cli.nomad_stand_in import fill, serving_nomad
from tests.docs.walking import PAGES, CommandStep, Walk, read_steps
from wharf.cli.nomad.compat import translate_arguments
from wharf.cli.nomad.reference import render_page

PAGE = PAGES / "docs/from-nomad.md"
NOMAD = "https://nomad.example.org:4646"
ROW = re.compile(r"\| `nomad ([^`]+)` \| `wharf ([^`]+)` \|")


def test_the_commands_of_the_page_print_what_the_page_shows(tmp_path: Path) -> None:
    with serving_nomad() as nomad, running(tmp_path / "walk", "dev", "--port", "0") as agent:
        fill(nomad)
        agent.wait_ready()
        walk = Walk(agent, nodes="vm", addresses={NOMAD: nomad.address})
        command_count = 0
        for step in read_steps(PAGE):
            walk.run_step(step)
            command_count += isinstance(step, CommandStep)

    assert command_count >= 6


def test_each_row_of_commands_is_what_the_link_runs() -> None:
    rows = ROW.findall(PAGE.read_text())

    assert len(rows) >= 20
    assert [" ".join(translate_arguments(nomad.split())) for nomad, _ in rows] == [wharf for _, wharf in rows]


def test_the_page_lists_each_command_and_option_that_the_link_refuses() -> None:
    page = PAGE.read_text()

    assert page == render_page(page), "run `python -m wharf.cli.nomad.reference`"
    assert "| `nomad agent` |" in page
    assert "| `nomad alloc exec` with `-job`, `-group` |" in page
