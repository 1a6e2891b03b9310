"""The commands of docs/looking-in.md print what the page shows, with a real node."""

from pathlib import Path

from tests.agent.processes import running
from tests.docs.walking import PAGES, CommandStep, Walk, read_steps, wait_for_nodes


def test_the_commands_of_the_page_print_what_the_page_shows(tmp_path: Path) -> None:
    with running(tmp_path / "walk", "dev", "--port", "0") as agent:
        wait_for_nodes(agent)
        walk = Walk(agent, nodes="vm")
        command_count = 0
        for step in read_steps(PAGES / "docs/looking-in.md"):
            walk.run_step(step)
            command_count += isinstance(step, CommandStep)

    assert command_count >= 15
