"""The commands about services, scaling policies and actions of jobs."""

from pathlib import Path

from tests.cli.terminal import Terminal, write_file
from tests.kit.requests import commit
from wharf.cluster.state.tables import SERVICES
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.services import ServiceRegistration

JOB = """
ID: shop
TaskGroups:
  - Name: web
    Count: 2
    Scaling: {Enabled: true, Min: 1, Max: 5}
    Tasks:
      - {Name: server, Driver: mock, Actions: [{Name: add-user, Command: /bin/add, Args: [--who, me]}]}
"""


def an_instance(terminal: Terminal) -> None:
    instance = ServiceRegistration(
        id="_nomad-task-1", service_name="web", namespace="default", job_id="shop", address="10.0.0.1", port=8080,
        tags=("blue",), node_id="n" * 36, alloc_id="a" * 36, create_index=WRITE_INDEX,
    )  # fmt: skip
    terminal.loop.run_until_complete(commit(terminal.server, SERVICES.build_put(instance)))


def test_services_are_listed_until_their_instances_are_deleted(terminal: Terminal) -> None:
    assert "No services.\n" == terminal.run_ok("service", "list")
    an_instance(terminal)

    assert ["Service  Namespace  Tags", "web      default    blue"] == terminal.run_ok("service", "list").splitlines()
    assert "10.0.0.1:8080" in terminal.run_ok("service", "info", "web")
    assert "deleted instance _nomad-task-1 of service web\n" == terminal.run_ok(
        "service", "delete", "web", "_nomad-task-1"
    )
    deleted = terminal.run("service", "info", "web")
    assert (1, "wharf: service web does not exist; `wharf service list` lists all services\n") == (
        deleted.code,
        deleted.err,
    )


def test_scaling_policies_are_listed_and_shown_by_a_prefix_of_their_id(terminal: Terminal, tmp_path: Path) -> None:
    assert "No scaling policies.\n" == terminal.run_ok("scaling", "policy", "list")
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, JOB))

    _, row = terminal.run_ok("scaling", "policy", "list").splitlines()
    output = terminal.run_ok("scaling", "policy", "info", row.split()[0])

    assert ["horizontal", "shop/web", "yes"] == row.split()[1:]
    assert ["Min      1", "Max      5"] == [line for line in output.splitlines() if line.startswith("M")]


def test_the_actions_of_a_job_are_listed(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, JOB))

    assert ["Action    Task        Command", "add-user  web/server  /bin/add --who me"] == terminal.run_ok(
        "job", "action", "shop"
    ).splitlines()
