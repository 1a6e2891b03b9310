"""Traefik, as its users install it, finds the services of jobs in the catalog of `wharf dev`."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.agent.processes import running
from tests.docs.limits_proxies import fetch, run_program
from tests.ports import free_ports
from tests.waiting import wait_until

WORKS_WITH = Path(__file__).parents[4] / "docs/works-with.md"
EXAMPLE_ADDRESS = "https://wharf.example.org:4646"
EXAMPLE_SECRET = "SECRET"
CLIENTS = Path(os.environ["WHARF_CLIENTS"]).resolve()

SCRIPT = """
mkdir www && cd www
echo "$NOMAD_ALLOC_INDEX" >index
exec "$PYTHON" -m http.server --bind "$NOMAD_IP_http" "$NOMAD_PORT_http"
"""
"""Serves the index of the allocation at /index."""


def read_example(language: str) -> str:
    """Return the code block of the page in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", WORKS_WITH.read_text("utf-8"), re.DOTALL)
    return str(found)


SHOWN_TAGS = ("traefik.enable=true", "traefik.http.routers.shown.rule=Path(`/index`)")


def wait_for_reply(port: int, index: int) -> None:
    """Wait until the allocation with this index answers a request."""
    wait_until(lambda: fetch(port, "/index").body == f"{index}\n", what=f"allocation {index} replies")


class Catalog(NamedTuple):
    """An agent with access control, whose catalog has the services of jobs."""

    address: str
    manager: str
    """The secret of a management token."""
    reader: str
    """The secret of the token that docs/works-with.md describes."""

    def get(self, path: str) -> Any:
        return self._send(path, None)

    def post(self, path: str, body: object) -> Any:
        return self._send(path, json.dumps(body).encode())

    def _send(self, path: str, body: bytes | None) -> Any:
        reply = fetch(int(self.address.rpartition(":")[2]), path, body=body, X_Nomad_Token=self.manager)
        assert 200 == reply.status, reply.body
        return json.loads(reply.body or "null")

    def register(self, name: str, *tags: str, count: int = 1) -> None:
        """Register a job with a service that runs `SCRIPT`."""
        service = {"Name": name, "PortLabel": "http", "Provider": "nomad", "Tags": tags}
        task = {
            "Name": "t",
            "Driver": "raw_exec",
            "Config": {"command": "/bin/sh", "args": ["-c", SCRIPT]},
            "Env": {"PYTHON": sys.executable},
            "Resources": {"CPU": 20, "MemoryMB": 50},
        }
        group = {
            "Name": "g",
            "Count": count,
            "Tasks": [task],
            "Services": [service],
            "Networks": [{"DynamicPorts": [{"Label": "http"}]}],
        }
        self.post("/v1/jobs", {"Job": {"ID": name, "Name": name, "Datacenters": ["dc1"], "TaskGroups": [group]}})

    def fill_in(self, example: str) -> str:
        """Return an example of the page with the address of the agent and the secret of the token."""
        return example.replace(EXAMPLE_ADDRESS, self.address).replace(EXAMPLE_SECRET, self.reader)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    folder = tmp_path_factory.mktemp("dev")
    (folder / "wharf.toml").write_text("[compat]\nnomad = true\n[acl]\nenabled = true\n")
    with running(folder, "dev", "--port", "0", "--config", "wharf.toml") as agent:
        agent.wait_ready()
        manager = Catalog(agent.address, "", "").post("/v1/acl/bootstrap", {})["SecretID"]
        operator = Catalog(agent.address, manager, "")
        operator.post("/v1/acl/policy/discovery", {"Name": "discovery", "Rules": read_example("hcl")})
        token = operator.post("/v1/acl/token", {"Name": "discovery", "Type": "client", "Policies": ["discovery"]})
        yield Catalog(agent.address, manager, token["SecretID"])


@contextmanager
def run_traefik(catalog: Catalog, folder: Path, *options: str) -> Iterator[int]:
    """Run Traefik with the options of docs/works-with.md. Yields its port."""
    (port,) = free_ports(1)
    command = catalog.fill_in(read_example("sh").replace("\\\n", " ")).replace("=:80", f"=127.0.0.1:{port}")
    arguments = shlex.split(command)[1:]
    program = [str(CLIENTS / "proxies" / "traefik"), *arguments, "--global.checkNewVersion=false", *options]
    with run_program(program, folder, port, path="/"):
        yield port


@pytest.mark.parametrize("option", ["refreshInterval=1s", "watch=true"])
def test_traefik_routes_to_each_allocation_of_a_service_by_its_tags_until_it_ends(
    catalog: Catalog, tmp_path: Path, option: str
) -> None:
    catalog.register("hidden")
    wait_until(lambda: catalog.get("/v1/service/hidden"), what="the service without tags is in the catalog")

    with run_traefik(catalog, tmp_path, f"--providers.nomad.{option}") as port:
        catalog.register("shown", *SHOWN_TAGS, count=2)
        wait_for_reply(port, 0)
        wait_for_reply(port, 1)
        hidden = fetch(port, "/", Host="hidden").status
        catalog.register("shown", *SHOWN_TAGS, count=0)
        wait_until(lambda: fetch(port, "/index").status == 404, what="the route is gone")

    assert 404 == hidden
