"""How a limiter in front of a service is set up: one TOML file, read whole, with errors at line and column."""

from wharf.limits.configuration.reader import read_settings
from wharf.limits.configuration.settings import (
    DecisionLogSettings,
    GatewaySettings,
    Settings,
    StoreKind,
    StoreSettings,
    Upstream,
)

__all__ = [
    "DecisionLogSettings",
    "GatewaySettings",
    "Settings",
    "StoreKind",
    "StoreSettings",
    "Upstream",
    "read_settings",
]
