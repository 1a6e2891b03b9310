"""Registrations of services whose name, tags or address refer to values of the job or the node."""

from typing import Any

import pytest

from tests.builders import a_group, a_job, a_task
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.jobs.services import Service
from wharf.contract.model.services import MAX_SERVICE_CHARACTERS, find_registration_problem
from wharf.contract.wire.nodes.messages import AssignedAllocation
from wharf.node.networks import NetworkError
from wharf.node.networks.allocation_networks import AllocationNetworks
from wharf.node.node_mark import NodeMark
from wharf.node.services.registrations import ServiceInstance, build_registration
from wharf.node.settings import NodeSettings
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.interpolation import ReferenceValues, ResolutionLimit
from wharf.world import RealWorld

HOST = TaskHost("dc1", "global", "192.0.2.1", node_id="n1", node_name="one")
ALLOCATION = AssignedAllocation(id="a1", task_group="g")


def find_problem(value: str, port: int = 80, **fields: Any) -> str:
    """Return the problem that the node reports if `${NOMAD_META_x}` has this value."""
    service = Service(**{"name": "web-${NOMAD_META_x}", **fields})
    limit = ResolutionLimit(MAX_SERVICE_CHARACTERS)
    values = ReferenceValues({"NOMAD_META_x": value})
    registration = build_registration(ALLOCATION, ServiceInstance(service, "t", "192.0.2.1", port), HOST, values, limit)
    assert bool(limit.problem) is bool(find_registration_problem(registration)) or "more than" in limit.problem
    return limit.problem


@pytest.mark.parametrize("value", ["shop", "a b", "a/b", "caf\u00e9", "x" * 252])
def test_a_service_whose_name_can_be_read_by_its_path_is_registered(value: str) -> None:
    assert "" == find_problem(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("a\nb", "its name contains the character U+000A at position 6"),
        ("a\u202eb", "its name contains the character U+202E at position 6"),
        ("/../x", 'its name contains the path segment "." or ".."'),
        ("x" * 253, "its name is 257 bytes long"),
    ],
)
def test_a_service_whose_name_cannot_be_read_by_its_path_is_refused(value: str, problem: str) -> None:
    found = find_problem(value)

    assert found.startswith(f'service "web-${{NOMAD_META_x}}" cannot be registered: {problem}')
    assert found.endswith(" after its references are replaced")


def test_a_service_whose_name_becomes_empty_is_refused() -> None:
    assert "its name is empty" in find_problem("", name="${NOMAD_META_x}")


def test_a_service_whose_name_is_very_long_is_refused() -> None:
    assert "more than 65536 characters" in find_problem("x" * 70_000)


def test_a_service_with_an_unusable_address_or_port_is_refused() -> None:
    address = find_problem("a\nb", name="web", address="${NOMAD_META_x}")

    assert "its address contains the character U+000A" in address
    assert "its port is not between 0 and 65535" in find_problem("a", port=99_999)


@pytest.mark.parametrize("value", ["a\n192.0.2.9 bank", "-", "a b", "x" * 300])
def test_a_hostname_that_is_no_dns_name_after_its_references_are_replaced_is_refused(value: str) -> None:
    job = a_job("shop", a_group("g", a_task(), networks=(NetworkResource(mode="none", hostname="${meta.x}"),)))
    networks = AllocationNetworks(RealWorld(), NodeSettings(), NodeMark("n1"))

    with pytest.raises(NetworkError, match="is not a valid DNS name: change what it refers to"):
        networks._build_request(ALLOCATION, job, ReferenceValues({"meta.x": value}))
