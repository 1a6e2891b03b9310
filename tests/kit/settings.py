"""Settings for tests: the defaults of the configuration. Tests change single values with `replace`."""

from typing import Final

from wharf.agent.roles.brain import build_collection_settings, build_heartbeat_settings
from wharf.agent.roles.server import build_search_limits
from wharf.config.settings import AgentSettings

USUAL_HEARTBEATS: Final = build_heartbeat_settings(AgentSettings())
USUAL_COLLECTION: Final = build_collection_settings(AgentSettings())
USUAL_SEARCH_LIMITS: Final = build_search_limits(AgentSettings())
