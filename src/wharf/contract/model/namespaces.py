"""Namespaces: parts of the cluster in which job names are unique, and the checks before one is written."""

from wharf.contract.model.names import NAME_REGEX, is_valid_name, list_description_problems
from wharf.contract.model.record import Record

DEFAULT_NAMESPACE = "default"
MAX_NAMESPACE_WEIGHT = 1000
ALL_NAMESPACES = "*"
"""In a request: all namespaces that the caller may see. Never the name of a namespace."""


class NamespaceCapabilities(Record):
    """The drivers and network modes that jobs of a namespace may use.

    An empty `enabled` list allows all; a `disabled` list takes precedence.
    """

    enabled_task_drivers: tuple[str, ...] | None = None
    disabled_task_drivers: tuple[str, ...] | None = None
    enabled_network_modes: tuple[str, ...] | None = None
    disabled_network_modes: tuple[str, ...] | None = None


class AllowedNames(Record):
    """A default name, such as that of a node pool, and the names that jobs may choose instead. Names may be globs."""

    default: str = ""
    allowed: tuple[str, ...] | None = None  # Null: all names; empty: only the default.
    denied: tuple[str, ...] | None = None  # Cannot be set together with `allowed`.


class Namespace(Record):
    """A part of the cluster in which job names are unique. Access policies and quotas apply to namespaces."""

    name: str
    description: str = ""
    quota: str = ""  # The name of its quota; empty: none.
    weight: int = 1  # Its share of free capacity, relative to other namespaces that wait for it.
    meta: dict[str, str] | None = None
    capabilities: NamespaceCapabilities | None = None
    node_pool_configuration: AllowedNames | None = None
    vault_configuration: AllowedNames | None = None
    consul_configuration: AllowedNames | None = None
    required_extra_claims: tuple[str, ...] | None = None  # Stored without effect.
    optional_extra_claims: tuple[str, ...] | None = None  # Stored without effect.
    hash: bytes = b""  # A digest of the content.
    create_index: int = 0
    modify_index: int = 0


def list_namespace_problems(namespace: Namespace) -> list[str]:
    """Return an error text for each thing that is wrong with a submitted namespace; empty if it is valid."""
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
