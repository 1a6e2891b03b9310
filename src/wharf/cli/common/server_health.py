"""What a server reports about its health, for commands that print a warning or explain a refusal."""

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from wharf.contract.client import ClientSettings, SyncClient
    from wharf.contract.wire.agents import HealthReport

NO_LEADER_TEXT: Final = "the cluster has no leader now"
HEALTH_COMMAND: Final = "wharf operator api /v1/agent/health"
HEALTH_TIMEOUT_S: Final = 5.0
"""How long a failed command waits for the reason. A server reports its health within three seconds."""
MAX_REASON_CHARS: Final = 1_000
"""Limits what a command prints of the reason, which another program at the address may have sent."""
NO_LEADER_MESSAGE: Final = "no leader"
"""The message of a server that knows no more than the refusal says."""


def read_server_health(client: "SyncClient") -> "HealthReport | None":
    """Return the health of the server that replies; `None` if it cannot be read."""
    from wharf.contract.client import Unreachable
    from wharf.contract.client.errors import RequestRefused
    from wharf.contract.wire.agents import AgentHealth

    try:
        return client.agent.health(types=("server",), timeout_s=HEALTH_TIMEOUT_S).server
    except RequestRefused as error:  # A server that is not healthy replies with status 500 and its health.
        try:
            return msgspec.json.decode(error.text, type=AgentHealth).server
        except (msgspec.DecodeError, UnicodeEncodeError):
            return None
    except Unreachable:
        return None


def describe_warning(client: "SyncClient") -> str:
    """Return what the server that replies warns of, or why it is not healthy; empty if neither."""
    health = read_server_health(client)
    if health is None or (health.ok and health.message == "ok"):
        return ""
    return health.message[:MAX_REASON_CHARS]


def explain_missing_leader(client: "SyncClient", settings: "ClientSettings") -> str:
    """Return why the cluster has no leader, as the server that replies reports it, or the command that shows its health.

    Servers report nothing about the leader of another region.
    """
    health = None if settings.region else read_server_health(client)
    if health is None or health.ok or health.message in ("", NO_LEADER_MESSAGE):
        return f"{NO_LEADER_TEXT}, and `{HEALTH_COMMAND}` shows the health of a server"
    return f"{NO_LEADER_TEXT}: {health.message[:MAX_REASON_CHARS]}"
