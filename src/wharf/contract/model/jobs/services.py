"""Services that a group or a task registers, and their health checks."""

from enum import StrEnum
from typing import Final

from wharf.contract.model.jobs import inheritance
from wharf.contract.model.jobs.identities import DEFAULT_CLUSTER_NAME, WorkloadIdentity
from wharf.contract.model.record import Record
from wharf.contract.model.times import SECOND, DurationNs


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

    limit: int = 0
    """After how many failures in a row the task is restarted.

    The restart policy counts the restart as a failure of the task. 0 means never.

    Unit: failures
    Limits: at least 0
    Example: 3
    """
    grace: DurationNs = SECOND
    """How long after the start of the task failures do not count.

    Limits: at least 0s
    Example: 30s
    """
    ignore_warnings: bool = False
    """Whether a warning does not count as a failure.

    Limits: must be false with the provider `nomad`
    """


class ServiceCheck(Record):
    """A health check of a service."""

    name: str = ""
    """The name of the check, which `wharf alloc checks` shows.

    Default: `service: "<name of the service>" check`
    Limits: unique in a service of a task
    Example: alive
    """
    type: str = ""
    """How the check is performed.

    Values:
        http: sends an HTTP request; success is a status below 400
        tcp: opens a connection
        grpc: calls the health service of gRPC; not with the provider `nomad`
        script: runs a command inside a task; exit code 0 is success, 1 a warning; not with the provider
            `nomad`
    Default: none; required
    Example: http
    """
    command: str = ""
    """The program of a check of the type `script`.

    Default: none; required for `script`
    Example: /local/check.sh
    """
    args: tuple[str, ...] | None = None
    """The arguments of the program.

    Default: none
    Example: ["--quick"]
    """
    path: str = ""
    """The path of the HTTP request, with its query.

    Default: none; required for `http`
    Limits: without a scheme and a host
    Example: /healthz
    """
    protocol: str = ""
    """Whether the HTTP request uses TLS.

    Values:
        http: without TLS
        https: with TLS
    Other values: allowed
    Default: `http`
    Example: https
    """
    port_label: str = ""
    """The label of the port that is checked.

    Default: the port of the service
    Limits: the label of a port of the group's first network
    Example: http
    """
    expose: bool = False
    """Whether a proxy of Consul exposes the path of the check.

    Limits: must be false with the providers `wharf` and `nomad`
    Effect: none, because Wharf does not use Consul
    """
    address_mode: str = ""
    """Which address is checked.

    Values:
        host: the address of the node
        alloc: the address in the group's own network
        alloc_ipv6: accepted for jobs of Nomad, and treated as `host`
        driver: only with the provider `consul`
    Default: as in the service
    Example: alloc
    """
    advertise: str = ""
    """The address to check instead, for Consul.

    Example: 10.0.0.7
    Effect: none, because Wharf does not use Consul
    """
    interval: DurationNs = 0
    """The time between two checks.

    Default: none; required
    Limits: at least 1s
    Example: 10s
    """
    timeout: DurationNs = 0
    """How long a check may take.

    After this time it has failed.

    Default: none; required
    Limits: at least 1s
    Example: 2s
    """
    initial_status: str = ""
    """The status of the check before its first result.

    Values:
        passing: the check counts as passed
        warning: the check counts as failed
        critical: the check counts as failed
    Default: `critical`
    Example: passing
    """
    notes: str = ""
    """A text about the check.

    Example: Answers without the database
    Effect: none, because Wharf does not use Consul
    """
    tls_server_name: str = ""
    """The name in the certificate that the service must present.

    Default: the address
    Limits: must be empty with the provider `nomad`
    Example: web.internal
    """
    tls_skip_verify: bool = False
    """Whether any certificate of the service is accepted."""
    method: str = ""
    """The method of the HTTP request.

    Values:
        GET: reads
        HEAD: reads without a body
        POST: with the body of `Body`
        PUT: with the body of `Body`
        PATCH: with the body of `Body`
        DELETE: deletes
        CONNECT: for proxies
        OPTIONS: asks for the supported methods
        TRACE: echoes the request
    Default: `GET`
    Example: HEAD
    """
    header: dict[str, tuple[str, ...]] | None = None
    """The headers of the HTTP request.

    Each has a list of values.

    Default: none
    Example: {"Accept": ["text/plain"]}
    """
    body: str = ""
    """The body of the HTTP request.

    Default: none
    Example: "{}"
    """
    check_restart: CheckRestart | None = None
    """Whether failures of the check restart the task.

    Fields that are not set have the values of the service's block.

    Limits: not together with `OnUpdate` `ignore`
    """
    grpc_service: str = ""
    """The name of the service whose health a check of the type `grpc` requests.

    Default: none, which means the whole server
    Example: shop.Orders
    """
    grpc_use_tls: bool = False
    """Whether a check of the type `grpc` uses TLS."""
    task_name: str = ""
    """The task in which a script runs, and which `CheckRestart` restarts.

    Default: the task of the service; for a script of a group's service it is required
    Limits: a task of the group
    Example: server
    """
    success_before_passing: int = 0
    """How many successes in a row the check needs to pass.

    Unit: checks
    Limits: 0 with the provider `nomad`
    Example: 2
    """
    failures_before_critical: int = 0
    """How many failures in a row let the check fail.

    Unit: checks
    Limits: 0 with the provider `nomad`
    Example: 3
    """
    failures_before_warning: int = 0
    """How many failures in a row let the check warn.

    Unit: checks
    Limits: 0 with the providers `wharf` and `nomad`
    Example: 0
    Effect: none, because Wharf does not use Consul
    """
    on_update: str = ""
    """How the check counts for the health of an allocation during a deployment.

    Values:
        require_healthy: it must pass
        ignore_warnings: it must not fail; a warning is sufficient; not with the provider `nomad`
        ignore: it does not count
    Default: as in the service
    Example: ignore
    """


class ServiceWeights(Record):
    """The weights of a service instance in DNS replies of Consul, by the state of its checks."""

    passing: int = 1
    """The weight of an instance whose checks pass, in DNS replies of Consul.

    Limits: values below 1 count as 1
    Example: 10
    Effect: none, because Wharf does not use Consul
    """
    warning: int = 1
    """The weight of an instance with warnings, in DNS replies of Consul.

    Limits: values below 1 count as 1
    Example: 1
    Effect: none, because Wharf does not use Consul
    """


class Service(Record):
    """A service that a group or a task offers at a port, with its health checks."""

    name: str = ""
    """The name of the service, by which clients find it (`GET /v1/service/NAME`, and `service` in templates).

    `${JOB}`, `${TASKGROUP}`, `${TASK}` and `${BASE}` are replaced when the job is submitted.

    Default: `<job>-<group>` for a service of a group, `<job>-<group>-<task>` for a service of a task
    Limits: 1 to 63 letters, digits and inner dashes
    Example: web
    """
    task_name: str = ""
    """The task that offers a service of the group.

    Scripts of its checks run there.

    Default: the own task for a service of a task, otherwise none
    Limits: a task of the group
    Example: server
    """
    port_label: str = ""
    """The label of the port at which the service is reached.

    In HCL the argument is `port`.

    Default: none
    Limits: the label of a port of the group's first network
    Example: http
    """
    address_mode: str = "auto"
    """Which address is registered.

    Values:
        auto: the address of the node with the assigned port
        host: the address of the node with the assigned port
        alloc: the address in the group's own network; only in groups
        alloc_ipv6: accepted for jobs of Nomad, and treated as `host`; only in groups
        driver: accepted for jobs of Nomad, and treated as `host`; only in tasks
    Example: alloc
    """
    address: str = ""
    """The address to register instead, such as that of a load balancer.

    References such as `${attr.unique.network.ip-address}` are replaced on the node.

    Default: none
    Limits: only with `AddressMode` `auto`
    Example: web.example.com
    """
    enable_tag_override: bool = False
    """Whether other programs may change the tags in Consul.

    Effect: none, because Wharf does not use Consul
    """
    tags: tuple[str, ...] | None = None
    """Words with which clients select instances of the service.

    References are replaced on the node.

    Default: none
    Example: ["http", "v2"]
    """
    canary_tags: tuple[str, ...] | None = None
    """Tags of canaries, instead of `Tags`.

    Default: none
    Example: ["canary"]
    Effect: none; canaries are registered with `Tags`
    """
    checks: tuple[ServiceCheck, ...] | None = None
    """The health checks of the service.

    Deployments and drains wait for them.
    """
    check_restart: CheckRestart | None = None
    """Whether failing checks restart the task, for all checks of the service.

    Checks can override single fields.
    """
    connect: dict[str, object] | None = None
    """The settings of a proxy in the service mesh of Consul.

    They are stored without interpretation.

    Default: none
    Limits: must not be set
    Example: {"SidecarService": {}}
    Effect: refused, because Wharf has no service mesh
    """
    meta: dict[str, str] | None = None
    """Metadata of the service.

    Default: none
    Example: {"protocol": "h2"}
    Effect: none; it is stored
    """
    canary_meta: dict[str, str] | None = None
    """Metadata of canaries, instead of `Meta`.

    Default: none
    Example: {"protocol": "h2"}
    Effect: none; it is stored
    """
    tagged_addresses: dict[str, str] | None = None
    """Further addresses of the service, by name.

    Default: none
    Example: {"lan": "10.0.0.7:80"}
    Effect: none, because Wharf does not use Consul
    """
    namespace: str = ""
    """The namespace in which the service is registered.

    Servers set it to the namespace of the job.

    Default: the namespace of the job with the providers `wharf` and `nomad`, otherwise none
    Example: shop
    Effect: none; a submitted value is replaced
    """
    on_update: str = OnUpdate.REQUIRE_HEALTHY
    """How the checks of the service count for the health of an allocation during a deployment.

    Values:
        require_healthy: they must pass
        ignore_warnings: they must not fail; warnings are sufficient
        ignore: they do not count
    Example: ignore
    """
    provider: str = ServiceProvider.CONSUL
    """The catalog in which the service is registered: that of the cluster itself, which has two names.

    Wharf has no Consul. A job of Nomad that names no provider, or `consul`, gets the catalog of the cluster.

    Values:
        wharf: the catalog of the cluster
        nomad: the same, with the stricter rules of Nomad for checks
        consul: replaced as if it was absent, with a warning
    Default: `nomad`, or `wharf` if a check of the service needs it
    Example: wharf
    """
    cluster: str = DEFAULT_CLUSTER_NAME
    """The cluster of Consul.

    Example: default
    Effect: none, because Wharf does not use Consul
    """
    kind: str = ""
    """The kind of the service in Consul.

    Example: api-gateway
    Effect: none, because Wharf does not use Consul
    """
    identity: WorkloadIdentity | None = None
    """The identity with which the service is registered in Consul.

    Limits: needs an `Audience`
    Effect: none, because Wharf does not use Consul
    """
    weights: ServiceWeights | None = None
    """The weights of the instances in DNS replies of Consul.

    Effect: none, because Wharf does not use Consul
    """

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Complete a submitted service: its checks inherit its restart rule. Modifies and returns the JSON object."""
        return inheritance.complete_service(submitted)

    @property
    def is_native(self) -> bool:
        """Whether the service is registered in the cluster itself, not in Consul."""
        return self.provider in NATIVE_PROVIDERS
