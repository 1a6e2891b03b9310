"""Settings that are declared and read, and that nothing follows yet: which capability will.

They are accepted, so that a configuration need not change when the capability comes; but they are never passed over in
silence. What would be unsafe to pass over is refused by `rules`.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from wharf.config.configuration import Configuration
from wharf.config.tree import Path, Source

SCHEDULING: Final = "scheduling"
NODE: Final = "the node"

# Each stands for itself and for everything below it.
WAITING: Final = MappingProxyType({
    ("acl", "token_ttl"): NODE,
    ("acl", "policy_ttl"): NODE,
    ("acl", "role_ttl"): NODE,
    ("telemetry", "collection_interval"): NODE,
    ("telemetry", "publish_allocation_metrics"): NODE,
    ("telemetry", "publish_node_metrics"): NODE,
    ("ui",): "the pages",
    ("server", "enabled_schedulers"): SCHEDULING,
    ("server", "plan_rejection_tracker"): SCHEDULING,
    ("client", "options"): NODE,
    ("client", "cni_path"): NODE,
    ("client", "cni_config_dir"): NODE,
    ("client", "bridge_network_name"): NODE,
    ("client", "bridge_network_subnet"): NODE,
    ("client", "host_volume"): NODE,
    ("client", "host_network"): NODE,
    ("client", "disable_remote_exec"): NODE,
    ("client", "drain_on_shutdown"): NODE,
})  # fmt: skip


def awaited(path: Path) -> str | None:
    """The capability that will follow this setting; None: it is followed today."""
    return next((what for length in range(1, len(path) + 1) if (what := WAITING.get(path[:length]))), None)


def warnings(configuration: Configuration) -> Iterator[str]:
    """A sentence for each setting that was given and that nothing follows yet."""
    for path, origin in configuration.origins.items():
        what = awaited(path)
        if what is not None and origin.source is not Source.DEFAULT:
            yield f"{origin}: {'.'.join(map(str, path))} has no effect yet; it comes with {what}"
