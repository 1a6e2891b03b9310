"""The list of services and the instances of one."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.services import NamespaceServices, ServiceStub
from wharf.web.rendering import build_link
from wharf.web.views.listing import CutList, cut_list

_HOST: Final = re.compile(r"[0-9A-Za-z.:-]{1,253}")
"""A host name or an IP address."""


class ServiceRow(msgspec.Struct, frozen=True):
    """A service in the list."""

    name: str
    url: str
    namespace: str
    tags: str


class InstanceRow(msgspec.Struct, frozen=True):
    """An instance of a service."""

    id: str
    service: str
    service_url: str
    address: str
    address_url: str
    """Where a browser finds the instance; empty if it has no port."""
    job_id: str
    job_url: str
    alloc_url: str
    short_alloc_id: str
    node_url: str
    short_node_id: str
    tags: str
    deregister_url: str


def build_service_list(services: Sequence[NamespaceServices], prefix: str) -> CutList[ServiceRow]:
    """Return the list of services."""
    rows = [(each.namespace, stub) for each in services for stub in each.services]
    return cut_list(rows, _build_service_row, prefix)


def _build_service_row(service: tuple[str, ServiceStub]) -> ServiceRow:
    namespace, stub = service
    name = stub.service_name
    return ServiceRow(name, build_link("services", name, namespace=namespace), namespace, ", ".join(stub.tags))


def _is_host(address: str) -> bool:
    """Return whether an address, which a job can set, is one that a link may contain."""
    return _HOST.fullmatch(address) is not None


def build_instance_row(instance: ServiceRegistration) -> InstanceRow:
    """Return an instance of a service as the list shows it."""
    host = f"[{instance.address}]" if ":" in instance.address else instance.address
    address = f"{host}:{instance.port}" if instance.port else instance.address
    return InstanceRow(
        id=instance.id,
        service=instance.service_name,
        service_url=build_link("services", instance.service_name, namespace=instance.namespace),
        address=address,
        address_url=f"http://{address}/" if instance.port and _is_host(instance.address) else "",
        job_id=instance.job_id,
        job_url=build_link("jobs", instance.job_id, namespace=instance.namespace),
        alloc_url=build_link("allocations", instance.alloc_id),
        short_alloc_id=instance.alloc_id[:8],
        node_url=build_link("nodes", instance.node_id),
        short_node_id=instance.node_id[:8],
        tags=", ".join(instance.tags or ()),
        deregister_url=build_link(
            "services", instance.service_name, instance.id, "deregister", namespace=instance.namespace
        ),
    )
