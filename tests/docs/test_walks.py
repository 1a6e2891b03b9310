"""The commands of the walkthrough pages print what the pages show, with a real agent."""

from pathlib import Path

import pytest

from tests.agent.processes import running
from tests.docs.walking import PAGES, CommandStep, FileStep, Walk, read_steps, wait_for_nodes


@pytest.mark.parametrize(
    ("page", "nodes", "configuration"),
    [
        ("commands.md", 20, ""),
        ("quotas.md", 2, ""),
        ("scheduling.md", 50, ""),
        ("volumes.md", 0, ""),
        ("runs.md", 0, ""),
        ("access.md", 0, "[acl]\nenabled = true\n"),
    ],
)
def test_the_commands_of_the_page_print_what_the_page_shows(
    tmp_path: Path, page: str, nodes: int, configuration: str
) -> None:
    (tmp_path / "some.toml").write_text(configuration)
    words = ("dev", "--port", "0", "--fake-nodes", str(nodes), "--config", str(tmp_path / "some.toml"))
    with running(tmp_path / "walk", *words) as agent:
        if configuration:  # Without a token, nodes cannot be listed. The page runs no jobs.
            agent.wait_ready()
        else:
            wait_for_nodes(agent, nodes + 1)
        walk = Walk(agent, nodes=r"vm(-\d+)?")
        command_count = 0
        for step in read_steps(PAGES / "docs" / page):
            walk.run_step(step)
            command_count += isinstance(step, CommandStep)

    assert command_count >= 8


def test_the_job_files_of_the_page_run_and_print_what_it_shows(tmp_path: Path) -> None:
    with running(tmp_path / "walk", "dev", "--port", "0") as agent:
        wait_for_nodes(agent)
        walk = Walk(agent, nodes="vm")
        steps = list(read_steps(PAGES / "docs/job-files.md"))
        for step in steps:
            walk.run_step(step)

    assert sum(isinstance(step, FileStep) for step in steps) == 13


def test_the_steps_of_the_page_pass_texts_and_print_what_it_shows(tmp_path: Path) -> None:
    with running(tmp_path / "walk", "dev", "--port", "0") as agent:
        wait_for_nodes(agent)
        walk = Walk(agent, nodes="vm")
        steps = list(read_steps(PAGES / "docs/step-outputs.md"))
        for step in steps:
            walk.run_step(step)

    assert sum(isinstance(step, CommandStep) for step in steps) == 5
