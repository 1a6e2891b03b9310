"""The options of the built-in task drivers: the keys of `Config` in a task. Plugins have options of their own."""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.model.drivers.docker import DockerConfig
from wharf.contract.model.drivers.programs import ExecConfig, MockConfig, RawExecConfig

DRIVER_CONFIGS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "docker": DockerConfig,
    "exec": ExecConfig,
    "raw_exec": RawExecConfig,
    "mock": MockConfig,
}
"""The type of the options of each built-in driver."""

OPTION_NAMES: Final = frozenset(
    field.encode_name for config in DRIVER_CONFIGS.values() for field in msgspec.structs.fields(config)
)
"""The names of the options of all built-in drivers."""

REQUIRED_OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "docker": ("image", "nginx:1.27"),
    "exec": ("command", "/bin/sh"),
    "raw_exec": ("command", "/bin/sh"),
}
"""The option without which no task of a driver can start, and an example of its value."""
