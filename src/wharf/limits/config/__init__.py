"""The settings of a limiter: one TOML file, whose problems are reported together with line and column."""

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
