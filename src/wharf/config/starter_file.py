"""The commented configuration file that `wharf config init` writes. Its sentences are the descriptions of the settings.

Writing the file is not done here.
"""

import enum
import textwrap
from collections.abc import Iterator
from typing import Final, NamedTuple

from wharf.config.builder import format_path
from wharf.config.reference import describe_default, describe_values
from wharf.config.schema import find_field
from wharf.config.tree import KeyPath

COMMENT_WIDTH: Final = 100
DOCUMENTED_AT: Final = "the documentation page Configuration"


class AgentRole(enum.StrEnum):
    """What the agent of a file is."""

    SERVER = "server"
    NODE = "node"
    BOTH = "both"


class StarterSetting(NamedTuple):
    """A setting of the file: its value as TOML, and whether the file sets it or only shows it in a comment."""

    key: str
    value: str
    is_set: bool = False


_NAMES: Final = (
    StarterSetting("region", '"global"'),
    StarterSetting("datacenter", '"dc1"'),
    StarterSetting("name", '"s1"'),
    StarterSetting("data_dir", '"/var/lib/wharf"', is_set=True),
)
_LISTENING: Final = (
    StarterSetting("bind_addr", '"127.0.0.1"', is_set=True),
    StarterSetting("ports.http", "4646"),
)
_SERVER: Final = (
    StarterSetting("state.engine", '"sqlite"', is_set=True),
    StarterSetting("state.etcd.endpoints", '["10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379"]'),
    StarterSetting("state.etcd.prefix", '"/wharf"'),
    StarterSetting("state.etcd.tls.ca_file", '"/etc/wharf/tls/ca.pem"'),
    StarterSetting("state.etcd.tls.cert_file", '"/etc/wharf/tls/etcd-client.pem"'),
    StarterSetting("state.etcd.tls.key_file", '"/etc/wharf/tls/etcd-client-key.pem"'),
    StarterSetting("server.enabled", "true", is_set=True),
    StarterSetting("server.begin_cluster", "true"),
    StarterSetting("acl.enabled", "true", is_set=True),
    StarterSetting("keyring.file", '"/var/lib/wharf/keyring.key"'),
    StarterSetting("keyring.secret", '"…"'),
    StarterSetting("snapshots.interval", '"1h"'),
    StarterSetting("snapshots.keep", "24"),
    StarterSetting("telemetry.prometheus_metrics", "true"),
)
_TLS: Final = (
    StarterSetting("tls.http", "true"),
    StarterSetting("tls.ca_file", '"/etc/wharf/tls/ca.pem"'),
    StarterSetting("tls.cert_file", '"/etc/wharf/tls/agent.pem"'),
    StarterSetting("tls.key_file", '"/etc/wharf/tls/agent-key.pem"'),
)
_NODE: Final = (
    StarterSetting("client.enabled", "true", is_set=True),
    StarterSetting("client.node_pool", '"default"'),
    StarterSetting("client.node_class", '"large"'),
    StarterSetting("client.reserved.cpu", "500"),
    StarterSetting("client.reserved.memory", "512"),
)
_REMOTE_SERVERS: Final = (
    StarterSetting("client.servers", '["127.0.0.1:4646"]', is_set=True),
    StarterSetting("client.intro_token", '"…"'),
)
_LOGS: Final = (StarterSetting("log_level", '"info"'), StarterSetting("log_file", '"/var/log/wharf.log"'))
SETTINGS_BY_ROLE: Final = {
    AgentRole.SERVER: (*_NAMES, *_LISTENING, *_LOGS, *_SERVER, *_TLS),
    AgentRole.NODE: (*_NAMES, *_LOGS, *_NODE, *_REMOTE_SERVERS, *_TLS),
    AgentRole.BOTH: (*_NAMES, *_LISTENING, *_LOGS, *_SERVER, *_NODE, *_TLS),
}
_PURPOSE_BY_ROLE: Final = {
    AgentRole.SERVER: "a server: an agent that stores the state of the cluster and runs no tasks",
    AgentRole.NODE: "a node: an agent that runs tasks and needs the addresses of servers",
    AgentRole.BOTH: "an agent that is a server and a node",
}


def render_starter_file(role: AgentRole) -> str:
    """Return a valid configuration with a sentence about each setting. Optional settings are comments."""
    return "\n".join([*_render_introduction(role), *_render_tables(role), ""])


def _render_introduction(role: AgentRole) -> Iterator[str]:
    yield from _comment(f"This configures {_PURPOSE_BY_ROLE[role]}.")
    yield from _comment(
        'A line such as "#name = ..." is a comment: remove the "#" to set the value. `wharf config check` finds errors. '
        f"All settings: {DOCUMENTED_AT}."
    )


def _render_tables(role: AgentRole) -> Iterator[str]:
    """Yield the lines of the settings, with a heading for each table. Keys outside of tables come first, as in TOML."""
    settings_by_table: dict[KeyPath, list[StarterSetting]] = {}
    for setting in SETTINGS_BY_ROLE[role]:
        settings_by_table.setdefault(tuple(setting.key.split("."))[:-1], []).append(setting)
    for table, settings in settings_by_table.items():
        if table:
            yield ""
            yield f"[{format_path(table)}]"
        for setting in settings:
            yield from _render_setting(setting)


def _render_setting(setting: StarterSetting) -> Iterator[str]:
    path = tuple(setting.key.split("."))
    found = find_field(path)
    assert found is not None, f"{setting.key} is not a setting"
    field = found[0]
    yield ""
    yield from _comment(f"{field.info.description} {describe_values(field)} Default: {describe_default(field)}.")
    yield f"{'' if setting.is_set else '#'}{path[-1]} = {setting.value}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text.replace("`", ""),
        COMMENT_WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
