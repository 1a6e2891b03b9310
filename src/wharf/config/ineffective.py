"""Settings that are declared and read, and that nothing follows yet: which capability will. And those that never will
be followed, since what they steer elsewhere does not exist here: why not.

They are accepted, so that a configuration need not change when the capability comes; but they are never passed over in
silence. What would be unsafe to pass over is refused by `rules`.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from wharf.config.configuration import Configuration
from wharf.config.tree import KeyPath, OriginKind

NODE_CAPABILITY: Final = "the node"

# Each stands for itself and for everything below it.
CAPABILITY_BY_KEY: Final[Mapping[KeyPath, str]] = MappingProxyType({
    ("acl", "token_ttl"): NODE_CAPABILITY,
    ("acl", "policy_ttl"): NODE_CAPABILITY,
    ("acl", "role_ttl"): NODE_CAPABILITY,
    ("telemetry", "collection_interval"): NODE_CAPABILITY,
    ("telemetry", "publish_allocation_metrics"): NODE_CAPABILITY,
    ("telemetry", "publish_node_metrics"): NODE_CAPABILITY,
    ("ui",): "the pages",
})  # fmt: skip

REASON_BY_KEY: Final[Mapping[KeyPath, str]] = MappingProxyType({
    ("server", "enabled_schedulers"): "the leader schedules every type of job",
    ("server", "plan_rejection_tracker"): "plans are made by the one leader, and no node refuses them",
})  # fmt: skip


def get_awaited_capability(path: KeyPath) -> str | None:
    """The capability that will follow this setting; None: it is followed today."""
    return _of_place(CAPABILITY_BY_KEY, path)


def get_ineffective_reason(path: KeyPath) -> str | None:
    """Why this setting steers nothing here; None: it does."""
    return _of_place(REASON_BY_KEY, path)


def _of_place(said: Mapping[KeyPath, str], path: KeyPath) -> str | None:
    return next((what for length in range(1, len(path) + 1) if (what := said.get(path[:length]))), None)


def list_warnings(configuration: Configuration) -> Iterator[str]:
    """A sentence for each setting that was given and that nothing follows yet."""
    for path, origin in configuration.origins.items():
        if origin.kind is OriginKind.DEFAULT:
            continue
        name = ".".join(map(str, path))
        if (what := get_awaited_capability(path)) is not None:
            yield f"{origin}: {name} has no effect yet; it comes with {what}"
        if (why := get_ineffective_reason(path)) is not None:
            yield f"{origin}: {name} has no meaning here: {why}"
