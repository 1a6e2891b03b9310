"""The commands and files of docs/three-machines.md set up a server and two nodes, on one machine and on free ports."""

import re
from contextlib import ExitStack
from pathlib import Path

from tests.agent.processes import RunningAgent, running
from tests.docs.walking import PAGES, CommandStep, Walk, read_steps
from tests.ports import free_ports

PAGE = PAGES / "docs/three-machines.md"


def test_the_steps_of_the_page_set_up_a_server_and_two_nodes(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    server_file, node_file, _ = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    *first_steps, status = [step for step in read_steps(PAGE) if isinstance(step, CommandStep)]
    introductions = [step for step in first_steps if " intro " in step.command]

    with ExitStack() as stack:

        def start(name: str, text: str) -> RunningAgent:
            folder = tmp_path / name
            folder.mkdir()
            for shown, local in (
                ("10.0.0.1:4646", f"127.0.0.1:{port}"),
                ('"10.0.0.1"', '"127.0.0.1"'),
                ("/var/lib/wharf", f"{folder}/data"),
            ):
                text = text.replace(shown, local)
            file = folder / "a.toml"
            file.touch(mode=0o600)
            file.write_text(text)
            agent = stack.enter_context(running(folder, "agent", "--config", "a.toml"))
            agent.wait_ready()
            return agent

        server = start("laptop", f"{server_file}[ports]\nhttp = {port}\n")
        walk = Walk(server, nodes="lab[12]", addresses={"10.0.0.1:4646": f"127.0.0.1:{port}"})
        for step in first_steps:
            if step not in introductions:
                walk.run_step(step)
        for name, step in zip(("lab1", "lab2"), introductions, strict=True):
            walk.run_step(CommandStep(f"{step.command} > {name}.token", []))
            token = (server.folder / f"{name}.token").read_text().strip()
            start(name, node_file.replace('"lab1"', f'"{name}"').replace("TOKEN", token) + "[ports]\nhttp = 0\n")
        walk.run_step(status)
