"""Namespaces: parts of the cluster in which job names are unique, and the checks before one is written."""

from wharf.contract.model.names import NAME_REGEX, is_valid_name, list_description_problems
from wharf.contract.model.record import Record

DEFAULT_NAMESPACE = "default"
MAX_NAMESPACE_WEIGHT = 1000
ALL_NAMESPACES = "*"
"""In a request: all namespaces that the caller may see. Never the name of a namespace."""


class NamespaceCapabilities(Record):
    """The drivers and network modes that jobs may use. An empty enabled list allows all; disabled wins."""

    enabled_task_drivers: tuple[str, ...] | None = None
    disabled_task_drivers: tuple[str, ...] | None = None
    enabled_network_modes: tuple[str, ...] | None = None
    disabled_network_modes: tuple[str, ...] | None = None


class AllowedNames(Record):
    """A default name, and the names that may be chosen instead, as globs. `allowed` and `denied` exclude each other.

    A null `allowed` permits all names; an empty one permits only the default.
    """

    default: str = ""
    allowed: tuple[str, ...] | None = None
    denied: tuple[str, ...] | None = None


class Namespace(Record):
    """A part of the cluster in which job names are unique. Policies and quotas apply to namespaces."""

    name: str
    description: str = ""
    quota: str = ""
    weight: int = 1  # Its fair share when several namespaces wait for the same capacity.
    meta: dict[str, str] | None = None
    capabilities: NamespaceCapabilities | None = None
    node_pool_configuration: AllowedNames | None = None
    vault_configuration: AllowedNames | None = None
    consul_configuration: AllowedNames | None = None
    required_extra_claims: tuple[str, ...] | None = None
    optional_extra_claims: tuple[str, ...] | None = None
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


def list_namespace_problems(namespace: Namespace) -> list[str]:
    """Return everything that is wrong with a submitted namespace."""
    found = []
    if not is_valid_name(namespace.name):
        found.append(f'invalid name "{namespace.name}". Must match regex {NAME_REGEX}')
    found += list_description_problems(namespace.description)
    if not 1 <= namespace.weight <= MAX_NAMESPACE_WEIGHT:
        found.append(f"weight must be between 1 and {MAX_NAMESPACE_WEIGHT}")
    for label, configuration in (
        ("node pool", namespace.node_pool_configuration),
        ("vault", namespace.vault_configuration),
        ("consul", namespace.consul_configuration),
    ):
        if configuration is not None and configuration.allowed is not None and configuration.denied is not None:
            found.append(f"{label} configuration: allowed and denied cannot both be set")
    return found
