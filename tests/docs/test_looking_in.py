"""The commands of docs/looking-in.md print what the page shows, with a real node."""

from pathlib import Path

from tests.agent.processes import running
from tests.docs.walking import PAGES, Typed, Walk, steps


def test_the_commands_of_the_page_print_what_the_page_shows(tmp_path: Path) -> None:
    with running(tmp_path / "walk", "dev", "--port", "0") as agent:
        agent.wait_ready()
        walk = Walk(agent, nodes="vm")
        typed = 0
        for step in steps(PAGES / "docs/looking-in.md"):
            walk.take(step)
            typed += isinstance(step, Typed)

    assert typed >= 15
