"""Workload identities and secrets of tasks, and their settings for Vault and Consul."""

from typing import ClassVar, Final

from wharf.contract.model.record import Record
from wharf.contract.model.times import DurationNs

DEFAULT_IDENTITY_NAME: Final = "default"
DEFAULT_CLUSTER_NAME: Final = "default"
DEFAULT_AUDIENCE: Final = ("wharf",)
"""The audience of the identity token that every task gets: the cluster itself."""
API_AUDIENCES: Final = frozenset({*DEFAULT_AUDIENCE, "nomadproject.io"})
"""The audiences with which an identity is meant for the cluster's own API. The second one is that of Nomad's API."""


class WorkloadIdentity(Record):
    """The settings of a signed token that proves to others which task or service its bearer is."""

    name: str = DEFAULT_IDENTITY_NAME
    """The name of the identity.

    The file and the variable with its token contain it.

    Limits: 1 to 128 letters, digits, dashes and underscores; unique in the task
    Example: vault
    """
    audience: tuple[str, ...] | None = None
    """The recipients that may accept the token.

    In HCL the argument is `aud`.

    Default: `["wharf"]` for the default identity, otherwise none
    Limits: an identity without an audience returns a warning
    Example: ["https://db.example.com"]
    """
    change_mode: str = ""
    """What happens to the task when its token is renewed.

    Values:
        noop: nothing
        restart: the task is restarted
        signal: the task gets `ChangeSignal`
    Default: none, which means `noop`
    Example: restart
    """
    change_signal: str = ""
    """The signal for the change mode `signal`.

    Default: none
    Limits: required with the change mode `signal`, and not allowed with another one
    Example: SIGHUP
    """
    env: bool = False
    """Whether the task receives the token as an environment variable: `NOMAD_TOKEN` and `WHARF_TOKEN`, with
    `_<name>` at the end for further identities.
    """
    file: bool = False
    """Whether the task receives the token as a file: `secrets/nomad_token`, or `secrets/nomad_<name>.jwt` for
    further identities.
    """
    filepath: str = ""
    """The file for the token, as the task sees it.

    Default: none, which means the file that `File` names
    Limits: only with `File`
    Example: local/token.jwt
    """
    service_name: str = ""
    """The service that the identity stands for; empty for the task itself.

    Default: none
    Example: web
    Effect: none
    """
    ttl: DurationNs = 0
    """How long a token is valid.

    The node renews it after half of this time. 0s means that it does not expire.

    Limits: at least 0s; must be 0s for the default identity
    Example: 1h
    """
    extra_claims: tuple[str, ...] | None = None
    """Names of further claims in the token.

    Default: none
    Example: ["unique_id"]
    Effect: none
    """


class Vault(Record):
    """How a task gets a token for Vault, a server that stores secrets."""

    role: str = ""
    """The role with which a token is requested from Vault.

    Example: web
    Effect: refused; store secrets in variables instead
    """
    namespace: str = ""
    """The namespace in Vault.

    Default: `VaultNamespace` of the job
    Example: team
    Effect: refused; store secrets in variables instead
    """
    cluster: str = DEFAULT_CLUSTER_NAME
    """The name of the cluster of Vault.

    Example: default
    Effect: refused; store secrets in variables instead
    """
    env: bool = True
    """Whether the task receives the token as an environment variable.

    Effect: refused; store secrets in variables instead
    """
    disable_file: bool = False
    """Whether the token is not written to a file.

    Effect: refused; store secrets in variables instead
    """
    change_mode: str = "restart"
    """What happens to the task when the token changes.

    Values:
        noop: nothing
        restart: the task is restarted
        signal: the task gets `ChangeSignal`
    Example: noop
    Effect: refused; store secrets in variables instead
    """
    change_signal: str = "SIGHUP"
    """The signal for the change mode `signal`.

    Example: SIGUSR1
    Effect: refused; store secrets in variables instead
    """
    allow_token_expiration: bool = False
    """Whether the token is not renewed.

    Effect: refused; store secrets in variables instead
    """

    # Accepted from older clients without effect.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"Policies"})


class Consul(Record):
    """Which cluster of Consul (an external service catalog) a group or a task uses."""

    namespace: str = ""
    """The namespace in Consul.

    Default: `ConsulNamespace` of the job
    Example: team
    Effect: none, because Wharf does not use Consul
    """
    cluster: str = DEFAULT_CLUSTER_NAME
    """The name of the cluster of Consul.

    Example: default
    Effect: none, because Wharf does not use Consul
    """
    partition: str = ""
    """The admin partition in Consul.

    Example: shop
    Effect: none, because Wharf does not use Consul
    """


class TaskSecret(Record):
    """A secret of a provider; it has no effect, because no provider exists."""

    name: str = ""
    """The name of the secret.

    In HCL, it is the label of the block `secret`.

    Default: none; required
    Limits: 1 to 128 letters, digits and underscores; unique in the task
    Example: db
    Effect: none, because no provider of secrets exists
    """
    provider: str = ""
    """Where the secret comes from: a built-in provider or a plugin.

    Default: none; required
    Example: wharf
    Effect: none, because no provider of secrets exists
    """
    path: str = ""
    """The path of the secret at the provider.

    Default: none; required
    Example: shop/db
    Effect: none, because no provider of secrets exists
    """
    config: dict[str, object] | None = None
    """Options of a built-in provider.

    Default: none
    Limits: only for the providers `wharf`, `nomad` and `vault`
    Example: {"namespace": "shop"}
    Effect: none, because no provider of secrets exists
    """
    env: dict[str, str] | None = None
    """Environment variables of a plugin.

    Default: none
    Limits: not for the providers `wharf`, `nomad` and `vault`
    Example: {"ZONE": "blue"}
    Effect: none, because no provider of secrets exists
    """
