"""The commands and files of docs/three-servers.md set up a cluster, on one machine and on free ports."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.agent.processes import RunningAgent, running
from tests.docs.walking import PAGES, CommandStep, mask, matches, read_steps
from tests.ports import free_ports
from tests.waiting import wait_until

pytestmark = pytest.mark.needs_program("etcd")

PAGE = PAGES / "docs/three-servers.md"
MACHINES = ("s1", "s2", "s3")
PORTS = (4646, 2379, 2380)
NO_NODES = re.compile(r"(?!)")


class Machines:
    """The three machines of the page on this one: a folder and free ports for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"COLUMNS": "120", "PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
        ports = iter(free_ports(len(MACHINES) * len(PORTS)))
        self._addresses = {
            f"10.0.0.{number}:{port}": f"127.0.0.1:{next(ports)}"
            for number in range(1, len(MACHINES) + 1)
            for port in PORTS
        }

    def localize(self, text: str, machine: str = "s1") -> str:
        """Return a text of the page about s1 for another machine, with addresses and folders of this test."""
        folder = self.folder / machine
        if machine in MACHINES:
            own = f"10.0.0.{machine[1:]}"
            for name, value in (("--name s1", f"--name {machine}"), ('name = "s1"', f'name = "{machine}"')):
                text = text.replace(name, value)
            text = re.sub(r"(?<=-urls http://)10\.0\.0\.1", own, text)
            text = text.replace('bind_addr = "10.0.0.1"', 'bind_addr = "127.0.0.1"')
            text = text.replace("http = 4646", f"http = {self._addresses[f'{own}:4646'].partition(':')[2]}")
        for shown, local in self._addresses.items():
            text = text.replace(shown, local)
        for shown in ("/etc/wharf", "/var/lib/wharf", "/var/lib/etcd"):
            text = text.replace(shown, str(folder / Path(shown).name if shown != "/var/lib/wharf" else folder / "data"))
        return text

    def run_step(self, step: CommandStep) -> None:
        """Run a command of the page until it prints what the page shows."""
        if step.command.startswith("export "):
            name, _, value = step.command.removeprefix("export ").partition("=")
            printed = self.run(value[2:-1]) if value.startswith("$(") else [self.localize(value)]
            self.environment[name] = printed[0]
            return
        shown = mask(step.shown, NO_NODES)
        printed = []

        def matches_page() -> bool:
            output = self.run(step.command)
            for address, local in self._addresses.items():
                output = [line.replace(local, address) for line in output]
            printed[:] = [re.sub(r"\b(?:yes|no)\b", "ANY", line) for line in mask(output, NO_NODES)]
            return matches([re.sub(r"\b(?:yes|no)\b", "ANY", line) for line in shown], printed)

        wait_until(matches_page, what=f"{step.command} prints what the page shows, last {printed}")

    def run(self, command: str) -> list[str]:
        process = subprocess.run(
            [sys.executable, "-m", "wharf", *shlex.split(command)[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            timeout=60,
            check=False,
        )
        return process.stdout.rstrip("\n").splitlines()

    @contextmanager
    def running_etcd(self, command: str) -> Iterator[None]:
        """Run the page's command for each member of etcd."""
        members = []
        try:
            for machine in MACHINES:
                words = shlex.split(self.localize(command, machine).replace("\\\n", " "))
                with (self.folder / f"{machine}.etcd.log").open("wb") as log:
                    members.append(subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
            yield
        finally:
            for member in members:
                member.kill()
                member.wait()


def read_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_steps_of_the_page_set_up_three_servers_and_a_node(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    (etcd_command,) = read_blocks("sh")
    server_file, node_file = read_blocks("toml")
    for machine in MACHINES:
        (tmp_path / machine).mkdir()
    generation, *steps = [step for step in read_steps(PAGE) if isinstance(step, CommandStep)]
    (secret,) = machines.run(generation.command)
    position = next(index for index, step in enumerate(steps) if "force-leave" in step.command)

    with ExitStack() as stack:
        stack.enter_context(machines.running_etcd(etcd_command))

        def start(machine: str, text: str) -> RunningAgent:
            (tmp_path / machine).mkdir(exist_ok=True)
            file = tmp_path / machine / "a.toml"
            file.touch(mode=0o600)
            file.write_text(machines.localize(text.replace("SECRET", secret), machine))
            return stack.enter_context(running(tmp_path / machine, "agent", "--config", "a.toml"))

        first = start("s1", server_file)
        first.wait_ready()
        for step in steps[:2]:
            machines.run_step(step)
        servers = [start(machine, server_file) for machine in MACHINES[1:]]
        for server in servers:
            server.wait_ready()
        for step in steps[2:4]:
            machines.run_step(step)
        (token,) = machines.run(steps[4].command)
        node = start("n1", node_file.replace("TOKEN", token) + "[ports]\nhttp = 0\n")
        node.wait_ready()
        servers[1].signal(signal.SIGKILL)
        wait_until(lambda: "failed" in "".join(machines.run("wharf server members")), what="s3 is listed as failed")
        for step in steps[position:]:
            machines.run_step(step)

    assert (len(steps), position) == (7, 5)
