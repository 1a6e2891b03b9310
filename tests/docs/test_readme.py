"""The commands of the README print what it shows, with a real agent; links of all pages lead to files."""

import re
from pathlib import Path

import pytest

from tests.agent.processes import running
from tests.docs.walking import PAGES, CommandStep, Walk, read_steps, wait_for_nodes

README = PAGES / "README.md"
ALL = [README, PAGES / "CONTRIBUTING.md", *sorted((PAGES / "docs").rglob("*.md"))]


def test_the_commands_of_the_tour_print_what_the_page_shows(tmp_path: Path) -> None:
    with running(tmp_path / "tour", "dev", "--port", "0") as agent:
        wait_for_nodes(agent)
        walk = Walk(agent, nodes="vm")
        for step in read_steps(README):
            walk.run_step(step)


def test_the_tour_has_commands_and_requests() -> None:
    commands = [step.command.split()[0] for step in read_steps(README) if isinstance(step, CommandStep)]

    assert (commands.count("wharf") >= 5, "curl" in commands) == (True, True)


def test_dev_suggests_the_first_commands_of_the_tour(tmp_path: Path) -> None:
    with running(tmp_path / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()
        suggested = re.findall(r"-m (wharf .*)", agent.out)

    shown = [step.command for step in read_steps(README) if isinstance(step, CommandStep)]
    assert [command for command in suggested if "debug" not in command and command not in shown] == []


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())

    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
