"""Settings that are accepted but have no effect: those of planned capabilities, and those without a meaning in Wharf.

They are accepted so that existing configurations work, and every use is reported as a warning. Settings that would be
unsafe to ignore are rejected by `rules`.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from wharf.config.configuration import Configuration
from wharf.config.tree import KeyPath, OriginKind

NO_TOKENS_ON_NODES_TEXT: Final = "servers check all tokens, so nodes store none"
NO_METRICS_OF_NODES_TEXT: Final = "nodes publish no metrics"

# An entry applies to its key and to all keys below it.
CAPABILITY_BY_KEY: Final[Mapping[KeyPath, str]] = MappingProxyType({
    ("ui",): "the web interface",
})  # fmt: skip

REASON_BY_KEY: Final[Mapping[KeyPath, str]] = MappingProxyType({
    ("acl", "token_ttl"): NO_TOKENS_ON_NODES_TEXT,
    ("acl", "policy_ttl"): NO_TOKENS_ON_NODES_TEXT,
    ("acl", "role_ttl"): NO_TOKENS_ON_NODES_TEXT,
    ("telemetry", "collection_interval"): NO_METRICS_OF_NODES_TEXT,
    ("telemetry", "publish_allocation_metrics"): NO_METRICS_OF_NODES_TEXT,
    ("telemetry", "publish_node_metrics"): NO_METRICS_OF_NODES_TEXT,
    ("server", "enabled_schedulers"): "the leader schedules every type of job",
    ("server", "plan_rejection_tracker"): "only the leader makes plans, and nodes do not reject them",
})  # fmt: skip
NODE_ONLY_REASON: Final = (
    "an agent without a server opens no HTTP port; `wharf node status NODE` shows the health of its node"
)
NODE_ONLY_KEYS: Final[Sequence[KeyPath]] = (("ports", "http"), ("advertise", "http"))
"""Settings that only an agent with a server uses."""


def get_awaited_capability(path: KeyPath) -> str | None:
    """Return the planned capability that will use this setting, or `None` if there is none."""
    return _find_by_prefix(CAPABILITY_BY_KEY, path)


def get_ineffective_reason(path: KeyPath) -> str | None:
    """Return why this setting has no meaning in Wharf, or `None` if it has one."""
    return _find_by_prefix(REASON_BY_KEY, path)


def _find_by_prefix(text_by_path: Mapping[KeyPath, str], path: KeyPath) -> str | None:
    """Return the text of the first entry that is the path itself or a table around it."""
    return next((text for length in range(1, len(path) + 1) if (text := text_by_path.get(path[:length]))), None)


def list_warnings(configuration: Configuration) -> Iterator[str]:
    """Yield a warning for each setting that has no effect and is not at its default."""
    is_node_only = not configuration.settings.server.enabled
    for path, origin in configuration.origins.items():
        if origin.kind is OriginKind.DEFAULT:
            continue
        name = ".".join(map(str, path))
        if (capability := get_awaited_capability(path)) is not None:
            yield f"{origin}: {name} has no effect yet; it comes with {capability}"
        if (reason := get_ineffective_reason(path)) is not None:
            yield f"{origin}: {name} has no meaning here: {reason}"
        if is_node_only and path[0] == "sinks":
            yield f"{origin}: {name} has no effect: only servers send records of writes and events"
        if is_node_only and path in NODE_ONLY_KEYS:
            yield f"{origin}: {name} has no effect: {NODE_ONLY_REASON}"
