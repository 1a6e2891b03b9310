"""Services that a group or a task registers, and their health checks."""

from enum import StrEnum
from typing import Final

from wharf.contract.model.jobs import inheritance
from wharf.contract.model.jobs.identities import DEFAULT_CLUSTER_NAME, WorkloadIdentity
from wharf.contract.model.record import Record
from wharf.contract.model.times import SECOND


class ServiceProvider(StrEnum):
    """Where a service is registered. Nomad's name of the native provider is accepted and stored unchanged."""

    CONSUL = "consul"
    WHARF = "wharf"
    NOMAD = "nomad"


NATIVE_PROVIDERS: Final[frozenset[str]] = frozenset({ServiceProvider.WHARF, ServiceProvider.NOMAD})


class OnUpdate(StrEnum):
    """How the state of a check counts for the health of an allocation in a deployment."""

    REQUIRE_HEALTHY = "require_healthy"
    IGNORE_WARNINGS = "ignore_warnings"
    IGNORE = "ignore"


class CheckRestart(Record):
    """After how many consecutive failures a check restarts its task."""

    limit: int = 0
    grace: int = SECOND
    ignore_warnings: bool = False


class ServiceCheck(Record):
    """A health check of a service. Interval and timeout are nanoseconds."""

    name: str = ""
    type: str = ""
    command: str = ""
    args: tuple[str, ...] | None = None
    path: str = ""
    protocol: str = ""
    port_label: str = ""
    expose: bool = False
    address_mode: str = ""
    advertise: str = ""
    interval: int = 0
    timeout: int = 0
    initial_status: str = ""
    notes: str = ""
    tls_server_name: str = ""
    tls_skip_verify: bool = False
    method: str = ""
    header: dict[str, tuple[str, ...]] | None = None
    body: str = ""
    check_restart: CheckRestart | None = None
    grpc_service: str = ""
    grpc_use_tls: bool = False
    task_name: str = ""
    success_before_passing: int = 0
    failures_before_critical: int = 0
    failures_before_warning: int = 0
    on_update: str = ""


class ServiceWeights(Record):
    """The weight of a service in DNS replies of Consul."""

    passing: int = 1
    warning: int = 1


class Service(Record):
    """A service at a port. `connect` is passed on without interpretation, because only Consul understands it."""

    name: str = ""
    task_name: str = ""
    port_label: str = ""
    address_mode: str = "auto"
    address: str = ""
    enable_tag_override: bool = False
    tags: tuple[str, ...] | None = None
    canary_tags: tuple[str, ...] | None = None
    checks: tuple[ServiceCheck, ...] | None = None
    check_restart: CheckRestart | None = None
    connect: dict[str, object] | None = None
    meta: dict[str, str] | None = None
    canary_meta: dict[str, str] | None = None
    tagged_addresses: dict[str, str] | None = None
    namespace: str = ""
    on_update: str = OnUpdate.REQUIRE_HEALTHY
    provider: str = ServiceProvider.CONSUL
    cluster: str = DEFAULT_CLUSTER_NAME
    kind: str = ""
    identity: WorkloadIdentity | None = None
    weights: ServiceWeights | None = None

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Let the checks inherit the service's restart rule."""
        return inheritance.complete_service(submitted)

    @property
    def is_native(self) -> bool:
        """Whether the service is registered in the cluster itself, not in Consul."""
        return self.provider in NATIVE_PROVIDERS
