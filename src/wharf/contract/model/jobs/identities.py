"""Workload identities and secrets of tasks, and their settings for Vault and Consul."""

from typing import ClassVar, Final

from wharf.contract.model.record import Record

DEFAULT_IDENTITY_NAME: Final = "default"
DEFAULT_CLUSTER_NAME: Final = "default"
DEFAULT_AUDIENCE: Final = ("wharf",)
"""The audience of the identity token that every task gets: the cluster itself."""
API_AUDIENCES: Final = frozenset({*DEFAULT_AUDIENCE, "nomadproject.io"})
"""The audiences with which an identity is meant for the cluster's own API. The second one is that of Nomad's API."""


class WorkloadIdentity(Record):
    """The settings of a signed token that proves to others which task or service its bearer is."""

    name: str = DEFAULT_IDENTITY_NAME
    audience: tuple[str, ...] | None = None  # The recipients that may accept the token.
    change_mode: str = ""  # What happens to the task when the token is renewed.
    change_signal: str = ""  # With change mode "signal".
    env: bool = False  # Pass it in an environment variable.
    file: bool = False  # Write it to a file.
    filepath: str = ""  # Empty: a default name.
    service_name: str = ""  # The service that it identifies; empty for a task.
    ttl: int = 0  # ns; 0: it does not expire.
    extra_claims: tuple[str, ...] | None = None  # Names of additional claims.


class Vault(Record):
    """How a task gets a token for Vault, a server that stores secrets."""

    role: str = ""
    namespace: str = ""
    cluster: str = DEFAULT_CLUSTER_NAME  # The name of the Vault cluster.
    env: bool = True  # Pass the token in an environment variable.
    disable_file: bool = False  # Do not write it to a file.
    change_mode: str = "restart"  # What happens to the task when the token changes.
    change_signal: str = "SIGHUP"  # With change mode "signal".
    allow_token_expiration: bool = False

    # Accepted from older clients without effect.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Policies"})


class Consul(Record):
    """Which cluster of Consul (an external service catalog) a group or a task uses."""

    namespace: str = ""
    cluster: str = DEFAULT_CLUSTER_NAME
    partition: str = ""


class TaskSecret(Record):
    """A secret that the node fetches before the task starts."""

    name: str = ""
    provider: str = ""  # Where the secret comes from, such as "vault" or a plugin.
    path: str = ""  # The path of the secret at the provider.
    config: dict[str, object] | None = None  # For built-in providers.
    env: dict[str, str] | None = None  # For plugins.
