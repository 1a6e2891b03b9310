"""Settings that are accepted but have no effect, because they have no meaning in Wharf.

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


def get_ineffective_reason(path: KeyPath) -> str | None:
    """Return why this setting, or a table around it, has no meaning in Wharf; `None` if it has one."""
    return next((text for length in range(1, len(path) + 1) if (text := REASON_BY_KEY.get(path[:length]))), None)


def list_warnings(configuration: Configuration) -> Iterator[str]:
    """Yield a warning for each setting that has no effect and is not at its default."""
    is_node_only = not configuration.settings.server.enabled
    for path, origin in configuration.origins.items():
        if origin.kind is OriginKind.DEFAULT:
            continue
        name = ".".join(map(str, path))
        if (reason := get_ineffective_reason(path)) is not None:
            yield f"{origin}: {name} has no meaning here: {reason}"
        if is_node_only and path[0] == "sinks":
            yield f"{origin}: {name} has no effect: only servers send records of writes and events"
        if is_node_only and path in NODE_ONLY_KEYS:
            yield f"{origin}: {name} has no effect: {NODE_ONLY_REASON}"
