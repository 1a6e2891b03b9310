"""Workload identities and secrets of tasks, and their settings for Vault and Consul."""

from typing import ClassVar, Final

from wharf.contract.model.record import Record

DEFAULT_IDENTITY_NAME: Final = "default"
DEFAULT_CLUSTER_NAME: Final = "default"


class WorkloadIdentity(Record):
    """A signed token that identifies a task or a service."""

    name: str = DEFAULT_IDENTITY_NAME
    audience: tuple[str, ...] | None = None
    change_mode: str = ""
    change_signal: str = ""
    env: bool = False
    file: bool = False
    filepath: str = ""
    service_name: str = ""
    ttl: int = 0
    extra_claims: tuple[str, ...] | None = None


class Vault(Record):
    """How a task gets a Vault token."""

    role: str = ""
    namespace: str = ""
    cluster: str = DEFAULT_CLUSTER_NAME
    env: bool = True
    disable_file: bool = False
    change_mode: str = "restart"
    change_signal: str = "SIGHUP"
    allow_token_expiration: bool = False

    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Policies"})


class Consul(Record):
    """The Consul cluster that a group or a task uses."""

    namespace: str = ""
    cluster: str = DEFAULT_CLUSTER_NAME
    partition: str = ""


class TaskSecret(Record):
    """A secret that is fetched before the task starts."""

    name: str = ""
    provider: str = ""
    path: str = ""
    config: dict[str, object] | None = None
    env: dict[str, str] | None = None
