"""Settings that are declared and read, and that nothing follows yet: which capability will. And those that never will
be followed, since what they steer elsewhere does not exist here: why not.

They are accepted, so that a configuration need not change when the capability comes; but they are never passed over in
silence. What would be unsafe to pass over is refused by `rules`.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from wharf.config.configuration import Configuration
from wharf.config.tree import Path, Source

NODE: Final = "the node"

# Each stands for itself and for everything below it.
WAITING: Final[Mapping[Path, str]] = MappingProxyType({
    ("acl", "token_ttl"): NODE,
    ("acl", "policy_ttl"): NODE,
    ("acl", "role_ttl"): NODE,
    ("telemetry", "collection_interval"): NODE,
    ("telemetry", "publish_allocation_metrics"): NODE,
    ("telemetry", "publish_node_metrics"): NODE,
    ("ui",): "the pages",
})  # fmt: skip

MEANINGLESS: Final[Mapping[Path, str]] = MappingProxyType({
    ("server", "enabled_schedulers"): "the leader schedules every type of job",
    ("server", "plan_rejection_tracker"): "plans are made by the one leader, and no node refuses them",
})  # fmt: skip


def awaited(path: Path) -> str | None:
    """The capability that will follow this setting; None: it is followed today."""
    return _of_place(WAITING, path)


def meaningless(path: Path) -> str | None:
    """Why this setting steers nothing here; None: it does."""
    return _of_place(MEANINGLESS, path)


def _of_place(said: Mapping[Path, str], path: Path) -> str | None:
    return next((what for length in range(1, len(path) + 1) if (what := said.get(path[:length]))), None)


def warnings(configuration: Configuration) -> Iterator[str]:
    """A sentence for each setting that was given and that nothing follows yet."""
    for path, origin in configuration.origins.items():
        if origin.source is Source.DEFAULT:
            continue
        name = ".".join(map(str, path))
        if (what := awaited(path)) is not None:
            yield f"{origin}: {name} has no effect yet; it comes with {what}"
        if (why := meaningless(path)) is not None:
            yield f"{origin}: {name} has no meaning here: {why}"
