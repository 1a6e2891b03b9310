"""The `config` of a task with the docker driver: its validation against the settings of the node.

All problems (unknown keys, wrong types, features that the node forbids) are reported together, before any request to
the engine.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wharf.contract.model.drivers.docker import DockerConfig
from wharf.contract.model.drivers.options import convert_options
from wharf.node.drivers.config_keys import describe_unknown_keys
from wharf.node.sandbox.privileges import DEFAULT_CAPABILITIES


class DockerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The permissions that the operator of the node grants to containers."""

    volumes_enabled: bool = False
    """Whether jobs may mount host paths and named volumes from outside of their allocation."""
    allow_privileged: bool = False  # Whether jobs may run privileged containers and share namespaces with the host.
    allow_capabilities: tuple[str, ...] = DEFAULT_CAPABILITIES
    """Capabilities that a job may add; by default those that an engine gives to every container."""
    allow_runtimes: tuple[str, ...] = ("runc", "crun", "nvidia")
    allow_devices: tuple[str, ...] = ()  # Devices of the host that jobs may add.
    allow_security_opts: tuple[str, ...] = ()  # Values of `security_opt` that jobs may set.
    extra_labels: tuple[str, ...] = ()  # Names of the task's labels that its container gets.


class DockerConfigError(Exception):
    """The error of a task's invalid docker configuration. `problems` has one sentence for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


_SHARED_MODES: Final = ("pid_mode", "ipc_mode", "uts_mode", "userns_mode", "cgroupns")
"""Keys of which some values share a namespace, so that `allow_privileged` is required."""
_SHARING_VALUE: Final = re.compile("host|(container|ns|pod):?.*", re.DOTALL)
"""Values that share a namespace with the host or with a container of any job."""
_FOREIGN_NETWORK: Final = re.compile("(container|ns|pod):.*", re.DOTALL)
"""Values of `network_mode` that join the network of a container of any job. `host` is the default of other drivers."""
_OWN_SYSCTL: Final = re.compile(
    r"fs\.mqueue\..+|kernel\.(domainname|msgmax|msgmnb|msgmni|sem|shmall|shmmax|shmmni|shm_rmid_forced)"
)
"""Kernel settings that a container has for itself. Others change the host, some of them to run programs as root there."""
_NETWORK_SYSCTL: Final = re.compile(r"net\..+")
"""Kernel settings that a container has for itself unless it uses the network of the host."""
_FILE_LOG_OPTIONS: Final = frozenset({"path"})
"""Options of log drivers that name a file of the host, which the engine writes as root."""
_RESERVED_LABEL_PREFIXES: Final = ("wharf.run", "wharf.node", "wharf.log.")
"""Labels with which the node finds its containers and their log files. It writes those files as root."""


def parse_config(config: Mapping[str, Any], settings: DockerSettings) -> DockerConfig:
    """Return the validated config of a docker task.

    Raises DockerConfigError with all problems: unknown keys, wrong types, and features that the node forbids.
    """
    known_keys = DockerConfig.__struct_fields__
    problems = describe_unknown_keys(config, known_keys, "docker")
    plain = convert_options("docker", {key: value for key, value in config.items() if key in known_keys})
    try:
        parsed = msgspec.convert(plain, DockerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise DockerConfigError([*problems, f"Config: {_rewrite_validation_error(str(error))}"]) from None
    problems += _find_problems(parsed, settings)
    if problems:
        raise DockerConfigError(problems)
    return parsed


def _find_problems(config: DockerConfig, settings: DockerSettings) -> list[str]:
    """Return one sentence for each value of the config that is missing, invalid, or forbidden on this node."""
    problems = []
    if not config.image:
        problems.append("image is missing: name the image to run")
    if config.privileged and not settings.allow_privileged:
        problems.append("privileged is not allowed on this node (its setting allow_privileged)")
    if not settings.allow_privileged:
        problems += _find_host_access(config, settings)
    problems.extend(
        f"labels: {name[:100]} is reserved for the node: use another name"
        for name in config.labels
        if name.startswith(_RESERVED_LABEL_PREFIXES)
    )
    problems.extend(
        f'{name} = "{getattr(config, name)[:100]}" is not allowed on this node (its setting allow_privileged)'
        for name in _SHARED_MODES
        if _SHARING_VALUE.fullmatch(getattr(config, name)) and not settings.allow_privileged
    )
    allowed = {name.lower() for name in settings.allow_capabilities}
    for capability in config.cap_add:
        name = capability.lower().removeprefix("cap_")
        if name not in allowed and "all" not in allowed:
            problems.append(
                f"cap_add: {capability} is not allowed on this node; allowed are {', '.join(sorted(allowed))}"
            )
    if config.runtime and config.runtime not in settings.allow_runtimes:
        problems.append(f"runtime {config.runtime} is not allowed; allowed are {', '.join(settings.allow_runtimes)}")
    for mount in (*config.mount, *config.mounts):
        if mount.type not in ("volume", "bind", "tmpfs"):
            problems.append(f"mount {mount.target}: unknown type {mount.type}; use volume, bind or tmpfs")
        is_outside = mount.type == "volume" or (mount.type == "bind" and _is_outside(mount.source))
        if is_outside and not settings.volumes_enabled:
            problems.append(f"mount {mount.target}: volumes outside the allocation are not allowed on this node")
    for volume in config.volumes:
        source, separator, _ = volume.partition(":")
        if not separator:
            problems.append(f"volume {volume}: write source:target, or source:target:ro")
        elif _is_outside(source) and not settings.volumes_enabled:
            problems.append(f"volume {volume}: volumes outside the allocation are not allowed on this node")
    for name, limit in config.ulimit.items():
        if not all(part.lstrip("-").isdecimal() for part in limit.split(":")) or limit.count(":") > 1:
            problems.append(f'ulimit {name} is "{limit}": write "soft:hard", or one number for both')
    return problems


def _find_host_access(config: DockerConfig, settings: DockerSettings) -> list[str]:
    """Return one sentence for each value with which the container could become root on the host.

    Only on nodes without `allow_privileged`, which permits all of them.
    """
    problems = []
    if "all" not in settings.allow_devices:
        problems += [
            f"devices: {device.host_path[:100]} is not allowed on this node (its setting allow_devices)"
            for device in config.devices
            if device.host_path not in settings.allow_devices
        ]
    if "all" not in settings.allow_security_opts:
        problems += [
            f"security_opt: {option[:100]} is not allowed on this node (its setting allow_security_opts)"
            for option in config.security_opt
            if option not in settings.allow_security_opts
        ]
    for name in config.sysctl:
        key = name.replace("/", ".")
        has_own = _OWN_SYSCTL.fullmatch(key) or (_NETWORK_SYSCTL.fullmatch(key) and config.network_mode != "host")
        if not has_own:
            problems.append(
                f"sysctl: {name[:100]} would change the host; that is not allowed on this node (its setting "
                "allow_privileged)"
            )
    if _FOREIGN_NETWORK.fullmatch(config.network_mode):
        problems.append(
            f'network_mode = "{config.network_mode[:100]}" is not allowed on this node (its setting allow_privileged): '
            "put the tasks into one group with a network of its own"
        )
    if config.logging is not None and (named := _FILE_LOG_OPTIONS & config.logging.config.keys()):
        problems.append(
            f"logging: option {', '.join(sorted(named))} names a file of the host; that is not allowed on this node (its "
            "setting allow_privileged)"
        )
    if config.oom_score_adj < 0:
        problems.append(
            f"oom_score_adj: {config.oom_score_adj} would protect the task before the host; that is not allowed on this "
            "node (its setting allow_privileged): use 0 to 1000"
        )
    return problems


def _is_outside(source: str) -> bool:
    """Return whether a volume's source is outside of the allocation's folder.

    That is an absolute path, the name of a volume, or a path with `..`.
    """
    is_named = not source.startswith(".") and "/" not in source
    return source.startswith("/") or is_named or ".." in source.split("/")


def _rewrite_validation_error(error_text: str) -> str:
    """Turn msgspec's ``Expected `int`, got `str` - at `$.pids_limit` `` into `pids_limit: expected ...`."""
    reason, _, path = error_text.partition(" - at `$.")
    return f"{path.rstrip('`') or 'config'}: {reason[0].lower()}{reason[1:]}"
