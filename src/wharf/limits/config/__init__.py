"""How a limiter in front of a service is set up: one TOML file, read whole, with errors at line and column."""

from wharf.limits.config.settings import (
    DecisionLogSettings,
    GatewaySettings,
    LimiterSettings,
    StoreKind,
    StoreSettings,
    Upstream,
)
from wharf.limits.config.settings_file import read_settings

__all__ = [
    "DecisionLogSettings",
    "GatewaySettings",
    "LimiterSettings",
    "StoreKind",
    "StoreSettings",
    "Upstream",
    "read_settings",
]
