"""Services that a group or a task registers, and their health checks."""

from enum import StrEnum
from typing import Final

from wharf.contract.model.jobs import inheritance
from wharf.contract.model.jobs.identities import DEFAULT_CLUSTER_NAME, WorkloadIdentity
from wharf.contract.model.record import Record
from wharf.contract.model.times import SECOND


class ServiceProvider(StrEnum):
    """The catalog in which a service is registered."""

    CONSUL = "consul"
    WHARF = "wharf"  # The catalog of the cluster itself.
    NOMAD = "nomad"  # The same under Nomad's name; stored unchanged.


NATIVE_PROVIDERS: Final[frozenset[str]] = frozenset({ServiceProvider.WHARF, ServiceProvider.NOMAD})
"""The names of the catalog of the cluster itself."""


class OnUpdate(StrEnum):
    """How a health check counts for an allocation's health during a deployment."""

    REQUIRE_HEALTHY = "require_healthy"  # It must pass.
    IGNORE_WARNINGS = "ignore_warnings"  # It must not be critical.
    IGNORE = "ignore"  # It does not count.


class CheckRestart(Record):
    """After how many consecutive failures of a health check its task is restarted."""

    limit: int = 0  # Failures; 0: never restart.
    grace: int = SECOND  # ns after a start in which failures do not count.
    ignore_warnings: bool = False  # Warnings do not count as failures.


class ServiceCheck(Record):
    """A health check of a service."""

    name: str = ""
    type: str = ""  # "http", "tcp", "grpc" or "script".
    command: str = ""  # Of a script.
    args: tuple[str, ...] | None = None
    path: str = ""  # Of an HTTP request.
    protocol: str = ""  # "http" or "https".
    port_label: str = ""
    expose: bool = False  # Only for Consul.
    address_mode: str = ""  # Which address is checked, such as "host".
    advertise: str = ""  # The address to check instead.
    interval: int = 0  # ns
    timeout: int = 0  # ns
    initial_status: str = ""  # Before the first result.
    notes: str = ""
    tls_server_name: str = ""
    tls_skip_verify: bool = False
    method: str = ""  # Of an HTTP request.
    header: dict[str, tuple[str, ...]] | None = None
    body: str = ""
    check_restart: CheckRestart | None = None
    grpc_service: str = ""
    grpc_use_tls: bool = False
    task_name: str = ""  # Where a script runs.
    success_before_passing: int = 0
    failures_before_critical: int = 0
    failures_before_warning: int = 0
    on_update: str = ""


class ServiceWeights(Record):
    """The weights of a service instance in DNS replies of Consul, by the state of its checks."""

    passing: int = 1
    warning: int = 1


class Service(Record):
    """A service that a group or a task offers at a port, with its health checks."""

    name: str = ""
    task_name: str = ""  # The task that offers it.
    port_label: str = ""
    address_mode: str = "auto"  # Which address is registered, such as "host".
    address: str = ""  # The address to register instead.
    enable_tag_override: bool = False  # Only for Consul.
    tags: tuple[str, ...] | None = None
    canary_tags: tuple[str, ...] | None = None  # Used instead of `tags` while the allocation is a canary.
    checks: tuple[ServiceCheck, ...] | None = None
    check_restart: CheckRestart | None = None  # Default for its checks.
    connect: dict[str, object] | None = None  # Passed on without interpretation; only Consul understands it.
    meta: dict[str, str] | None = None
    canary_meta: dict[str, str] | None = None  # As `canary_tags`.
    tagged_addresses: dict[str, str] | None = None  # Further addresses by name.
    namespace: str = ""
    on_update: str = OnUpdate.REQUIRE_HEALTHY  # An `OnUpdate`; default for its checks.
    provider: str = ServiceProvider.CONSUL  # A `ServiceProvider`.
    cluster: str = DEFAULT_CLUSTER_NAME  # The Consul cluster.
    kind: str = ""  # The kind of the service in Consul.
    identity: WorkloadIdentity | None = None
    weights: ServiceWeights | None = None

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Complete a submitted service: its checks inherit its restart rule. Modifies and returns the JSON object."""
        return inheritance.complete_service(submitted)

    @property
    def is_native(self) -> bool:
        """Whether the service is registered in the cluster itself, not in Consul."""
        return self.provider in NATIVE_PROVIDERS
