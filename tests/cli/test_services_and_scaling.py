"""Services, scaling policies and the actions of jobs, as commands show them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.asking import Person, a_file, a_person
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


@pytest.fixture
def person(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    for name in ("WHARF_ADDR", "WHARF_NAMESPACE", "WHARF_TOKEN", "NOMAD_ADDR", "NOMAD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with a_person(capsys) as person:
        yield person


def an_instance(person: Person) -> None:
    instance = ServiceRegistration(
        id="_nomad-task-1", service_name="web", namespace="default", job_id="shop", address="10.0.0.1", port=8080,
        tags=("blue",), node_id="n" * 36, alloc_id="a" * 36, create_index=WRITE_INDEX,
    )  # fmt: skip
    person.loop.run_until_complete(commit(person.server, SERVICES.build_put(instance)))


def test_services_are_listed_with_their_instances_until_these_are_taken_out(person: Person) -> None:
    assert "There are no services.\n" == person.does("service", "list")
    an_instance(person)

    assert ["Service  Namespace  Tags", "web      default    blue"] == person.does("service", "list").splitlines()
    assert "10.0.0.1:8080" in person.does("service", "info", "web")
    assert "_nomad-task-1 is taken out of web\n" == person.does("service", "delete", "web", "_nomad-task-1")
    gone = person.wharf("service", "info", "web")
    assert (1, "wharf: nothing offers web; `wharf service list` lists all services\n") == (gone.code, gone.err)


def test_scaling_policies_are_listed_and_shown_by_the_beginning_of_their_id(person: Person, tmp_path: Path) -> None:
    assert "There are no scaling policies.\n" == person.does("scaling", "policy", "list")
    person.does("job", "run", "--detach", a_file(tmp_path, JOB))

    _, row = person.does("scaling", "policy", "list").splitlines()
    shown = person.does("scaling", "policy", "info", row.split()[0])

    assert ["horizontal", "shop/web", "yes"] == row.split()[1:]
    assert ["At least  1", "At most   5"] == [line for line in shown.splitlines() if line.startswith("At")]


def test_the_actions_of_a_job_are_listed(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", "--detach", a_file(tmp_path, JOB))

    assert ["Action    Task        Command", "add-user  web/server  /bin/add --who me"] == person.does(
        "job", "action", "shop"
    ).splitlines()
