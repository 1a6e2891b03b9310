"""Which service registrations a node may report: only those of the services of its own allocations."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.attempts import limited_cpu
from tests.builders import a_group, a_group_with_services, a_job, a_service, a_task
from tests.kit.state import AState
from wharf.cluster.operations.decision import Decision, RefusedServices
from wharf.cluster.operations.jobs.purge import purge_job
from wharf.cluster.operations.nodes import reports
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.state.tables import SERVICES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.services import ServiceRegistration, make_registration_id

VICTIM = "_nomad-task-a1-group-web-postgres-pg"
OWN = "_nomad-task-a2-group-web-web-http"


def a_registration(id: str, name: str, **fields: Any) -> ServiceRegistration:
    return ServiceRegistration(id=id, service_name=name, namespace="default", **fields)


def make_state(*jobs: Job) -> AState:
    """Return a state in which the nth job has an allocation `a<n>` on the node `node-<n>`."""
    state = AState()
    for number, job in enumerate(jobs, start=1):
        state.with_node(f"node-{number}")
        state.register(job)
        state.with_allocation(
            state.job(job.id), f"a{number}", node_id=f"node-{number}", client_status=ClientStatus.RUNNING
        )
    return state


def make_attacked_state() -> AState:
    """Return a state with a registered service on `node-1`, and a job with another service on `node-2`."""
    state = make_state(
        a_job("db", a_group_with_services(a_service("postgres", port_label="pg"))),
        a_job("web", a_group_with_services(a_service("web", port_label="http"))),
    )
    report(state, 1, a_registration(VICTIM, "postgres", address="10.0.0.1", port=5432))
    return state


def decide(state: AState, number: int, *services: ServiceRegistration) -> Decision[NodeWriteResult]:
    allocation = AllocationReport(id=f"a{number}", client_status=ClientStatus.RUNNING, services=services)
    return reports.apply_reports(
        state.replica, f"node-{number}", [allocation], state.moment, is_complete=False, max_evaluations=10
    )


def report(state: AState, number: int, *services: ServiceRegistration) -> None:
    """Apply a report of `node-<number>` about its allocation with these services."""
    state.lead(decide(state, number, *services))


def list_services(state: AState) -> dict[str, tuple[str, str]]:
    """Return the name and the allocation of each registration by its id."""
    return {each.id: (each.service_name, each.alloc_id) for each in state.replica.iter_all(SERVICES)}


def test_a_node_cannot_replace_the_registration_of_another_node() -> None:
    state = make_attacked_state()

    report(state, 2, a_registration(VICTIM, "postgres", address="6.6.6.6", port=666), a_registration(OWN, "web"))

    assert list_services(state) == {VICTIM: ("postgres", "a1"), OWN: ("web", "a2")}
    kept = state.replica.get(SERVICES, "default", VICTIM)
    assert kept is not None
    assert kept.address == "10.0.0.1"


def test_a_node_cannot_delete_the_registration_of_another_node() -> None:
    state = make_attacked_state()
    report(state, 2, a_registration(VICTIM, "postgres", address="6.6.6.6", port=666))

    report(state, 2)

    assert list_services(state) == {VICTIM: ("postgres", "a1")}


def test_a_node_cannot_take_the_id_of_a_service_that_is_not_registered_yet() -> None:
    state = make_attacked_state()
    report(state, 1)

    report(state, 2, a_registration(VICTIM, "postgres"))
    report(state, 1, a_registration(VICTIM, "postgres"))

    assert list_services(state) == {VICTIM: ("postgres", "a1")}


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("_nomad-task-a2-group-web-postgres-http", "postgres"),
        ("_nomad-task-a2-group-web-web-http", "postgres"),
        ("_nomad-task-a2-group-web-web-admin", "web"),
        ("_nomad-task-a2-other-web-http", "web"),
        ("web", "web"),
    ],
)
def test_a_node_cannot_register_a_service_that_the_job_does_not_have(id: str, name: str) -> None:
    state = make_attacked_state()

    report(state, 2, a_registration(id, name))

    assert list_services(state) == {VICTIM: ("postgres", "a1")}


def test_refused_services_are_counted_for_the_log() -> None:
    state = make_attacked_state()

    decision = decide(state, 2, a_registration(VICTIM, "postgres"), a_registration(OWN, "web"))

    assert decision.refused_services == (RefusedServices("a2", 1),)


def test_services_of_a_purged_job_whose_tasks_still_stop_are_dropped_without_a_line_in_the_log() -> None:
    state = make_attacked_state()
    state.lead(purge_job(state.replica, "default", "web", state.moment, max_changes=100))

    decision = decide(state, 2, a_registration(OWN, "web"))

    assert decision.refused_services == ()


@pytest.mark.parametrize(
    ("pattern", "name", "is_accepted"),
    [
        ("web-${node.class}", "web-large", True),
        ("web-${node.class}", "web-${node.class}", True),
        ("${attr.a}-web-${attr.b}", "x-web-y", True),
        ("${attr.a}-web-${attr.b}-${attr.a}", "x-web-y-x", True),
        ("web-$${literal}", "web-${literal}", True),
        ("web-${node.class}", "db-large", False),
        ("web-${node.class}-blue", "web-blue", False),
        ("${attr.a}-web-${attr.b}", "x-db-y", False),
        ("${attr.a}-web-${attr.b}-${attr.a}", "x-web-y", False),
    ],
)
def test_a_name_with_references_must_have_the_fixed_parts_of_the_name_in_the_job(
    pattern: str, name: str, is_accepted: bool
) -> None:
    network = NetworkResource(dynamic_ports=(Port(label="http"),))
    task = a_task("app", services=(a_service(pattern, port_label="http"),))
    state = make_state(a_job("web", a_group("web", task, networks=(network,))))
    id = make_registration_id(alloc_id="a1", owner="app", service=name, port_label="http")

    report(state, 1, a_registration(id, name))

    assert list_services(state) == ({id: (name, "a1")} if is_accepted else {})


def test_a_name_with_references_is_registered_once_for_each_service() -> None:
    state = make_state(a_job("web", a_group_with_services(a_service("web-${node.class}", port_label="http"))))
    services = [a_registration(f"_nomad-task-a1-group-web-web-{number}-http", f"web-{number}") for number in range(5)]

    report(state, 1, *services)

    assert len(list_services(state)) == 1


def test_services_of_an_earlier_version_of_the_job_stay_registered_until_the_node_has_the_newest() -> None:
    state = make_state(a_job("web", a_group_with_services(a_service("old", port_label="http"))))
    state.register(a_job("web", a_group_with_services(a_service("new", port_label="http"))))
    state.with_allocation(state.job("web"), "a1", client_status=ClientStatus.RUNNING)
    old = a_registration("_nomad-task-a1-group-web-old-http", "old")

    report(state, 1, old)

    assert list_services(state) == {old.id: ("old", "a1")}


def test_services_in_any_order_are_registered() -> None:
    names = [f"s{number}-${{node.class}}" for number in range(100)]
    state = make_state(a_job("web", a_group_with_services(*(a_service(name, port_label="http") for name in names))))
    services = [a_registration(f"_nomad-task-a1-group-web-s{number}-c-http", f"s{number}-c") for number in range(100)]

    report(state, 1, *reversed(services))

    assert len(list_services(state)) == 100


def test_many_foreign_services_are_refused_in_bounded_time() -> None:
    job = a_job(
        "web",
        a_group_with_services(*(a_service(f"s{number}${{node.class}}") for number in range(2_000))),
    )
    state = make_state(job)
    services = [a_registration(f"_nomad-task-a1-group-web-x{number}-", f"x{number}") for number in range(5_000)]

    with limited_cpu(0.5, "the decision"):
        decision = decide(state, 1, *services)

    assert decision.refused_services == (RefusedServices("a1", 5_000),)


def test_the_earlier_state_of_an_allocation_is_unaffected_by_refused_services() -> None:
    state = make_attacked_state()
    before = state.allocation("a2")

    report(state, 2, a_registration(VICTIM, "postgres"))

    assert replace(state.allocation("a2"), modify_index=before.modify_index) == before
