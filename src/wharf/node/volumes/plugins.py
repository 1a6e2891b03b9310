"""Plugins that create host volumes: the built-in `mkdir`, and programs in a folder that the operator selects.

A program is called with one argument, `fingerprint`, `create` or `delete`; environment variables (`DHV_…`) hold the
rest. It prints one JSON document and fails with an exit code other than 0. Calls can be repeated and must have the same
result.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from wharf.contract.wire.volumes import NodeVolume, NodeVolumeCreated
from wharf.node.deletion import delete_tree
from wharf.node.subprocesses import run_program
from wharf.node.threads import ThreadGroup, run_in_thread

MKDIR: Final = "mkdir"
MKDIR_VERSION: Final = "1.0.0"
FINGERPRINT_TIMEOUT_S: Final = 5.0
OPERATION_TIMEOUT_S: Final = 60.0
"""Limit of one call; protects other requests about volumes, which wait meanwhile."""
MAX_OUTPUT_BYTES: Final = 64 << 10
"""Limit of the output that is read; protects the memory of the agent."""
MAX_ERROR_CHARS: Final = 500
"""Limit of a plugin's text in an error message."""
NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
VOLUME_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9-]{1,128}")
MAX_OWNER_ID: Final = 2**32 - 2
"""The largest number of a user or group in Linux."""
DEFAULT_MODE: Final = 0o700


class VolumePluginError(Exception):
    """The error of a volume plugin that failed. Its message is a sentence for the user who requested the volume."""


class VolumePlugin(Protocol):
    """A plugin that creates and deletes the folders of volumes."""

    name: str

    async def fingerprint(self) -> str:
        """Return the plugin's version. Raises VolumePluginError."""
        ...

    async def create(self, volume: NodeVolume) -> NodeVolumeCreated:
        """Create the volume's folder, and return its path and size. Raises VolumePluginError."""
        ...

    async def delete(self, volume: NodeVolume) -> None:
        """Delete the volume's folder, if it exists. Raises VolumePluginError."""
        ...


class MkdirPlugin:
    """The built-in plugin: creates a folder named by the volume's id.

    Parameters of a volume: `mode` (octal), `uid` and `gid`.
    """

    name = MKDIR

    def __init__(self, root: Path) -> None:
        self._root = root

    async def fingerprint(self) -> str:
        return MKDIR_VERSION

    async def create(self, volume: NodeVolume) -> NodeVolumeCreated:
        """Create the volume's folder, or apply changed parameters to it. Return its path. Raises VolumePluginError."""
        mode, uid, gid = _read_parameters(volume.parameters or {})
        folder = self._get_folder(volume)
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o711)
            folder.mkdir(exist_ok=True)
            # Also for an existing folder, because the parameters may have been changed.
            folder.chmod(mode)
            if uid >= 0 or gid >= 0:
                os.chown(folder, uid, gid)
        except OSError as error:
            raise VolumePluginError(f"folder {folder} cannot be created: {error.strerror}") from error
        return NodeVolumeCreated(host_path=str(folder))

    async def delete(self, volume: NodeVolume) -> None:
        """Delete the volume's folder, if this plugin created it and it exists. Raises VolumePluginError."""
        folder = self._get_folder(volume)
        if volume.host_path and Path(volume.host_path) != folder:
            return  # Not created by this plugin.
        await run_in_thread(ThreadGroup.VOLUMES, delete_tree, folder)
        if await run_in_thread(ThreadGroup.VOLUMES, os.path.lexists, folder):
            raise VolumePluginError(f"folder {folder} cannot be deleted: some of its content remains")

    def _get_folder(self, volume: NodeVolume) -> Path:
        """Return the path of the volume's folder. Raises VolumePluginError if the volume's id is not a plain name."""
        if not VOLUME_ID_PATTERN.fullmatch(volume.id):
            raise VolumePluginError(f"invalid volume id {volume.id!r}")
        return self._root / volume.id


def _read_parameters(parameters: Mapping[str, str]) -> tuple[int, int, int]:
    """Return (mode, uid, gid) for the folder of a volume; -1 for an id that is not set. Raises VolumePluginError."""
    unknown = sorted(set(parameters) - {"mode", "uid", "gid"})
    if unknown:
        raise VolumePluginError(f"mkdir: unknown parameter {unknown[0]!r}: use mode, uid or gid")
    try:
        mode = int(parameters.get("mode", f"{DEFAULT_MODE:o}"), 8)
        uid, gid = int(parameters.get("uid", "-1")), int(parameters.get("gid", "-1"))
    except ValueError:
        raise VolumePluginError(
            "mkdir: mode must be an octal number such as 0755, uid and gid must be numbers"
        ) from None
    if not 0 <= mode <= 0o7777:
        raise VolumePluginError(f"mkdir: {mode:o} is not a mode of a folder")
    if not (-1 <= uid <= MAX_OWNER_ID and -1 <= gid <= MAX_OWNER_ID):
        raise VolumePluginError(f"mkdir: uid and gid must be numbers from 0 to {MAX_OWNER_ID}")
    return mode, uid, gid


class ProgramPlugin:
    """A volume plugin that is a program, installed by the operator. `volumes` is the folder for its volumes."""

    def __init__(self, path: Path, *, volumes: Path, node_id: str, node_pool: str) -> None:
        self.name = path.name
        self._path = path
        self._node_variables = {
            "DHV_PLUGIN_DIR": str(path.parent),
            "DHV_VOLUMES_DIR": str(volumes),
            "DHV_NODE_ID": node_id,
            "DHV_NODE_POOL": node_pool,
        }
        self._volumes = volumes

    async def fingerprint(self) -> str:
        """Run the program to read its version. Raises VolumePluginError."""
        output = await self._run("fingerprint", {}, timeout_s=FINGERPRINT_TIMEOUT_S)
        version = output.get("version")
        if not isinstance(version, str) or not version:
            raise VolumePluginError(f"plugin {self.name} returned no version")
        return version

    async def create(self, volume: NodeVolume) -> NodeVolumeCreated:
        """Run the program to create a volume. Return the path and the size that it prints. Raises VolumePluginError."""
        # Errors are ignored: a plugin may create its volumes elsewhere and not need this folder.
        with suppress(OSError):
            self._volumes.mkdir(parents=True, exist_ok=True, mode=0o711)
        output = await self._run("create", self._build_variables(volume), timeout_s=OPERATION_TIMEOUT_S)
        path, size = output.get("path"), output.get("bytes", 0)
        if not isinstance(path, str) or not path.startswith("/") or not isinstance(size, int):
            raise VolumePluginError(
                f'plugin {self.name} must print {{"path": "/…", "bytes": 0}}, but printed {output}'[:MAX_ERROR_CHARS]
            )
        if not await run_in_thread(ThreadGroup.VOLUMES, os.path.exists, path):
            raise VolumePluginError(f"plugin {self.name} returned the path {path}, which does not exist")
        return NodeVolumeCreated(host_path=path, capacity_bytes=size)

    async def delete(self, volume: NodeVolume) -> None:
        """Run the program to delete a volume. Raises VolumePluginError."""
        variables = self._build_variables(volume) | {"DHV_CREATED_PATH": volume.host_path}
        await self._run("delete", variables, timeout_s=OPERATION_TIMEOUT_S)

    @staticmethod
    def _build_variables(volume: NodeVolume) -> dict[str, str]:
        """Return the environment variables that describe the volume to the program."""
        return {
            "DHV_VOLUME_ID": volume.id,
            "DHV_VOLUME_NAME": volume.name,
            "DHV_NAMESPACE": volume.namespace,
            "DHV_CAPACITY_MIN_BYTES": str(volume.capacity_min_bytes),
            "DHV_CAPACITY_MAX_BYTES": str(volume.capacity_max_bytes),
            "DHV_PARAMETERS": json.dumps(volume.parameters or {}),
        }

    async def _run(self, operation: str, variables: Mapping[str, str], *, timeout_s: float) -> dict[str, object]:
        """Run the program for an operation, and return the JSON object that it prints. Raises VolumePluginError.

        Processes that it leaves behind are killed. A `delete` may print nothing.
        """
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            **self._node_variables,
            **variables,
            "DHV_OPERATION": operation,
        }
        try:
            result = await run_program(
                [self._path, operation],
                environment=environment,
                folder=self._path.parent,
                timeout_s=timeout_s,
                max_output_bytes=MAX_OUTPUT_BYTES,
                is_group_killed=True,
            )
        except TimeoutError:
            raise VolumePluginError(
                f"plugin {self.name} was killed: {operation} took longer than {timeout_s:g} s"
            ) from None
        except OSError as error:
            raise VolumePluginError(f"plugin {self.name} cannot be started: {error.strerror}") from error
        if result.exit_code:
            why = result.errors.decode(errors="replace").strip()[-MAX_ERROR_CHARS:]
            raise VolumePluginError(
                f"plugin {self.name} failed to {operation} with exit code {result.exit_code}: "
                f"{why or 'it printed no error message'}"
            )
        if operation == "delete" and not result.output.strip():
            return {}
        try:
            return msgspec.json.decode(result.output, type=dict[str, object])
        except msgspec.MsgspecError as error:
            raise VolumePluginError(f"plugin {self.name} must print a JSON object for {operation}: {error}") from None


def find_program_plugins(folder: Path, *, volumes: Path, node_id: str, node_pool: str) -> dict[str, VolumePlugin]:
    """Return the programs in a folder that are volume plugins, by name.

    `volumes` is the folder for their volumes. Files that every user can write are skipped, because plugins run with the
    node's rights.
    """
    plugins: dict[str, VolumePlugin] = {}
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            mode = path.stat().st_mode
            is_plugin = stat.S_ISREG(mode) and mode & 0o111 and not mode & stat.S_IWOTH
            if is_plugin and NAME_PATTERN.fullmatch(path.name) and path.name != MKDIR:
                plugins[path.name] = ProgramPlugin(path, volumes=volumes, node_id=node_id, node_pool=node_pool)
    return plugins
