"""The packages that `log_levels` can name, and the loggers they stand for.

A package is named without its group: `engines` is wharf.cluster.engines. Names from before 0.2 still work.
"""

import pkgutil
from collections.abc import Mapping
from typing import Final, TypeVar

import wharf

LevelT = TypeVar("LevelT")

_GROUPS: Final = ("cluster", "contract", "languages")

LOGGER_BY_FORMER_PART: Final[Mapping[str, str]] = {
    "agent.client_tls": "wharf.agent.tls.contexts",
    "agent.http_port": "wharf.agent.http.server",
    "agent.life": "wharf.agent.process_context",
    "agent.roles.serving": "wharf.agent.roles.server",
    "agent.start": "wharf.agent.startup",
    "agent.supervisor": "wharf.agent.supervision.supervisor",
    "api.elsewhere": "wharf.cluster.api.relay.regions",
    "api.endpoints.acl.logins": "wharf.cluster.api.handlers.acl.logins",
    "api.endpoints.node_sockets": "wharf.cluster.api.handlers.nodes.channel",
    "engines.sqlite_checkpoint": "wharf.cluster.engines.sqlite.checkpoint",
    "engines.sqlite_hub": "wharf.cluster.engines.sqlite.async_store",
    "engines.sqlite_leases": "wharf.cluster.engines.sqlite.leases",
    "engines.sqlite_store": "wharf.cluster.engines.sqlite.store",
    "engines.store_caller": "wharf.cluster.engines.store.server_connection",
    "limits.building": "wharf.limits.rate_limiter",
    "limits.desk.desk": "wharf.limits.decisions.service",
    "limits.operating.admin": "wharf.limits.admin.server",
    "limits.stores.changes": "wharf.limits.stores.change_log",
    "limits.stores.neighbours.counting": "wharf.limits.stores.neighbours.server",
    "limits.stores.quota": "wharf.limits.stores.redis.quota_leases",
    "limits.watching": "wharf.limits.config.file_watcher",
    "limits.webhook": "wharf.limits.decisions.alerts",
    "node.agent.arrivals": "wharf.node.migration.download",
    "node.agent.channel": "wharf.node.channel.endpoint",
    "node.agent.channel_line": "wharf.node.channel.connection",
    "node.agent.checking": "wharf.node.services.check_runner",
    "node.agent.folders": "wharf.node.tasks.folders",
    "node.agent.formers": "wharf.node.agent.allocations.predecessors",
    "node.agent.journal": "wharf.node.agent.allocations.journal",
    "node.agent.keeper_link": "wharf.node.supervisor.client",
    "node.agent.leaving": "wharf.node.agent.shutdown_drain",
    "node.agent.naming": "wharf.node.tasks.identities.manager",
    "node.agent.news": "wharf.node.agent.servers.node_events",
    "node.agent.node": "wharf.node.agent.node_agent",
    "node.agent.own_identity": "wharf.node.agent.servers.node_identity",
    "node.agent.upkeep": "wharf.node.agent.allocations.task_hooks",
    "node.agent.works": "wharf.node.agent.allocations.manager",
    "node.devices.devices": "wharf.node.devices.node_devices",
    "node.docker.beside": "wharf.node.drivers.docker.exec_command",
    "node.docker.following": "wharf.node.drivers.docker.logs",
    "node.networks.declared": "wharf.node.networks.plugin_chain",
    "node.networks.keeping": "wharf.node.networks.manager",
    "node.preparing.api_socket": "wharf.node.tasks.identities.api_socket",
    "node.preparing.cluster": "wharf.node.tasks.templates.queries",
    "node.preparing.identities": "wharf.node.tasks.identities.tokens",
    "node.preparing.tending": "wharf.node.tasks.preparation",
    "node.supervisor.keeper": "wharf.node.supervisor.task_supervisor",
    "node.volumes.volumes": "wharf.node.volumes.node_volumes",
    "server.answering.jobs": "wharf.cluster.server.rpc.handlers.jobs",
    "server.asking": "wharf.cluster.server.rpc.dispatcher",
    "server.collecting": "wharf.cluster.server.duties.collection",
    "server.compactor": "wharf.cluster.server.log.compaction",
    "server.copying": "wharf.cluster.server.duties.replication",
    "server.follower": "wharf.cluster.server.log.follower",
    "server.founder": "wharf.cluster.server.log.bootstrap",
    "server.launcher": "wharf.cluster.server.duties.periodic",
    "server.leading.applier": "wharf.cluster.server.leader.evaluation_processor",
    "server.leading.foresight": "wharf.cluster.server.leader.pre_planning",
    "server.leading.node_care": "wharf.cluster.server.leader.node_monitor",
    "server.leading.report_batch": "wharf.cluster.server.leader.node_write_batcher",
    "server.leading.thinking": "wharf.cluster.server.leader.loop",
    "server.tending": "wharf.cluster.server.duties.secrets",
    "server.whereabouts": "wharf.cluster.server.node_channels.directory",
    "server.writer": "wharf.cluster.server.log.writer",
}
"""The logger of each module that had another name before 0.2. Configurations may still use the old name, or that of the
package around it."""


def list_log_parts() -> dict[str, str]:
    """Return the full package name of each part of Wharf that `log_levels` can name, such as wharf.cluster.engines for
    `engines`.
    """
    packages = {module.name: f"wharf.{module.name}" for module in pkgutil.iter_modules(wharf.__path__)}
    for group in _GROUPS:
        folders = [f"{folder}/{group}" for folder in wharf.__path__]
        packages |= {module.name: f"wharf.{group}.{module.name}" for module in pkgutil.iter_modules(folders)}
    return packages


def get_logger_levels(levels: Mapping[str, LevelT]) -> dict[str, LevelT]:
    """Return the level of each logger that the parts in `levels` stand for, under their current or former names.

    If several parts contain a logger, the deepest one decides. If a current and a former name are equally deep, the
    current one decides.
    """
    level_by_part = {part.removeprefix("wharf."): level for part, level in levels.items()}
    logger_by_part = {part: get_part_logger(part) for part in level_by_part}
    level_by_logger = {logger_by_part[part]: level for part, level in level_by_part.items()}
    for former_part, logger in LOGGER_BY_FORMER_PART.items():
        current_parts = [part for part, package in logger_by_part.items() if _is_within(logger, package)]
        former_parts = [part for part in level_by_part if _is_within(former_part, part)]
        if former_parts and _depth(former_parts) > _depth(current_parts):
            level_by_logger[logger] = level_by_part[max(former_parts, key=len)]
    return level_by_logger


def get_part_logger(part: str) -> str:
    """Return the logger name of a part or of a package in it: `engines.etcd` is wharf.cluster.engines.etcd."""
    package, dot, rest = part.removeprefix("wharf.").partition(".")
    return list_log_parts().get(package, f"wharf.{package}") + dot + rest


def _is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _depth(parts: list[str]) -> int:
    return max((part.count(".") + 1 for part in parts), default=0)
