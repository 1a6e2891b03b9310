"""The commands of the page about first jobs, with two agents, programs and containers."""

from pathlib import Path

import pytest

from tests.agent.processes import running
from tests.docs.walking import PAGES, CommandStep, FileStep, Walk, read_steps
from tests.node.docker.podman import running_podman
from tests.waiting import wait_until

pytestmark = [pytest.mark.needs_program("podman"), pytest.mark.needs("containers")]

FIRST = '[client.drivers.docker]\nsocket = "{socket}"\n'
SECOND = """\
name = "second"
data_dir = "{folder}/data"
[client]
enabled = true
servers = ["{address}"]
[client.drivers.raw_exec]
enabled = true
"""
REGISTRY = "registry.example"


def test_the_commands_of_the_page_print_what_the_page_shows(tmp_path: Path) -> None:
    with running_podman() as (podman, registry):
        first, second = tmp_path / "first", tmp_path / "second"
        second.mkdir()
        (tmp_path / "first.toml").write_text(FIRST.format(socket=podman.socket))
        with running(first, "dev", "--port", "0", "--config", str(tmp_path / "first.toml")) as agent:
            agent.wait_ready()
            (second / "second.toml").write_text(SECOND.format(folder=second, address=agent.address))
            with running(second, "agent", "--config", "second.toml"):
                wait_until(lambda: len(agent.get("/v1/nodes")) == 2, what="two nodes are registered")  # type: ignore[arg-type]  # A list.
                walk = Walk(agent, nodes="(vm|second)")
                command_count = 0
                for step in read_steps(PAGES / "docs/first-jobs.md"):
                    if isinstance(step, FileStep):
                        step = step._replace(text=step.text.replace(REGISTRY, registry.address))
                    walk.run_step(step)
                    command_count += isinstance(step, CommandStep)

    assert command_count >= 20
