"""Plug-ins that create host volumes: the built-in `mkdir`, and programs in a folder that the operator selects.

A program is called with one argument, `fingerprint`, `create` or `delete`; environment variables (`DHV_…`) hold the
rest. It prints one JSON document and fails with an exit code other than 0. Calls can be repeated and must have the same
result.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from wharf.contract.wire.volumes import NodeVolume, NodeVolumeCreated

MKDIR: Final = "mkdir"
MKDIR_VERSION: Final = "1.0.0"
FINGERPRINT_TIMEOUT_S: Final = 5.0
OPERATION_TIMEOUT_S: Final = 60.0
MAX_OUTPUT_BYTES: Final = 64 << 10
MAX_ERROR_CHARS: Final = 500
NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
VOLUME_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9-]{1,128}")
DEFAULT_MODE: Final = 0o700


class VolumePluginError(Exception):
    """A plug-in failed. The message is a sentence for the user who requested the volume."""


class VolumePlugin(Protocol):
    name: str

    async def fingerprint(self) -> str:
        """Return the plug-in's version. Raises VolumePluginError."""
        ...

    async def create(self, volume: NodeVolume) -> NodeVolumeCreated:
        """Create the volume's folder. Raises VolumePluginError."""
        ...

    async def delete(self, volume: NodeVolume) -> None:
        """Delete the volume's folder, if it exists. Raises VolumePluginError."""
        ...


class MkdirPlugin:
    """Creates a folder named by the volume's id. Parameters: `mode` (octal), `uid`, `gid`."""

    name = MKDIR

    def __init__(self, root: Path) -> None:
        self._root = root

    async def fingerprint(self) -> str:
        return MKDIR_VERSION

    async def create(self, volume: NodeVolume) -> NodeVolumeCreated:
        mode, uid, gid = _read_parameters(volume.parameters or {})
        place = self._place(volume)
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o711)
            place.mkdir(exist_ok=True)
            # Again for one that was there: its parameters may have been changed.
            place.chmod(mode)
            if uid >= 0 or gid >= 0:
                os.chown(place, uid, gid)
        except OSError as error:
            raise VolumePluginError(f"the folder {place} cannot be made: {error.strerror}") from error
        return NodeVolumeCreated(host_path=str(place))

    async def delete(self, volume: NodeVolume) -> None:
        place = self._place(volume)
        if volume.host_path and Path(volume.host_path) != place:
            return  # It was there before us, and was only told of.
        try:
            await asyncio.to_thread(shutil.rmtree, place)
        except FileNotFoundError:
            return
        except OSError as error:
            raise VolumePluginError(f"the folder {place} cannot be taken away: {error.strerror}") from error

    def _place(self, volume: NodeVolume) -> Path:
        if not VOLUME_ID_PATTERN.fullmatch(volume.id):
            raise VolumePluginError(f"{volume.id!r} is no ID of a volume")
        return self._root / volume.id


def _read_parameters(given: Mapping[str, str]) -> tuple[int, int, int]:
    unknown = sorted(set(given) - {"mode", "uid", "gid"})
    if unknown:
        raise VolumePluginError(f"mkdir knows no parameter {unknown[0]}: there are mode, uid and gid")
    try:
        mode = int(given.get("mode", f"{DEFAULT_MODE:o}"), 8)
        uid, gid = int(given.get("uid", "-1")), int(given.get("gid", "-1"))
    except ValueError:
        raise VolumePluginError("mkdir takes mode as an octal number, as 0755, and uid and gid as numbers") from None
    if not 0 <= mode <= 0o7777:
        raise VolumePluginError(f"mkdir: {mode:o} is no mode of a folder")
    return mode, uid, gid


class ProgramPlugin:
    """A program that the operator installed as a plug-in."""

    def __init__(self, path: Path, *, volumes: Path, node_id: str, node_pool: str) -> None:
        self.name = path.name
        self._path = path
        self._about = {
            "DHV_PLUGIN_DIR": str(path.parent),
            "DHV_VOLUMES_DIR": str(volumes),
            "DHV_NODE_ID": node_id,
            "DHV_NODE_POOL": node_pool,
        }
        self._volumes = volumes

    async def fingerprint(self) -> str:
        said = await self._run("fingerprint", {}, within_s=FINGERPRINT_TIMEOUT_S)
        version = said.get("version")
        if not isinstance(version, str) or not version:
            raise VolumePluginError(f"plugin {self.name} says no version")
        return version

    async def create(self, volume: NodeVolume) -> NodeVolumeCreated:
        # In it plugins put what they make; they are started as we are, and may make it where they like.
        with suppress(OSError):
            self._volumes.mkdir(parents=True, exist_ok=True, mode=0o711)
        said = await self._run("create", self._of(volume), within_s=OPERATION_TIMEOUT_S)
        path, size = said.get("path"), said.get("bytes", 0)
        if not isinstance(path, str) or not path.startswith("/") or not isinstance(size, int):
            raise VolumePluginError(
                f'plugin {self.name} is to answer {{"path": "/…", "bytes": 0}}, and says {said}'[:MAX_ERROR_CHARS]
            )
        if not await asyncio.to_thread(os.path.exists, path):
            raise VolumePluginError(f"plugin {self.name} says that it made {path}, and nothing is there")
        return NodeVolumeCreated(host_path=path, capacity_bytes=size)

    async def delete(self, volume: NodeVolume) -> None:
        await self._run(
            "delete", self._of(volume) | {"DHV_CREATED_PATH": volume.host_path}, within_s=OPERATION_TIMEOUT_S
        )

    @staticmethod
    def _of(volume: NodeVolume) -> dict[str, str]:
        return {
            "DHV_VOLUME_ID": volume.id,
            "DHV_VOLUME_NAME": volume.name,
            "DHV_NAMESPACE": volume.namespace,
            "DHV_CAPACITY_MIN_BYTES": str(volume.capacity_min_bytes),
            "DHV_CAPACITY_MAX_BYTES": str(volume.capacity_max_bytes),
            "DHV_PARAMETERS": json.dumps(volume.parameters or {}),
        }

    async def _run(self, operation: str, told: Mapping[str, str], *, within_s: float) -> dict[str, object]:
        environment = {"PATH": os.environ.get("PATH", os.defpath), **self._about, **told, "DHV_OPERATION": operation}
        try:
            process = await asyncio.create_subprocess_exec(
                str(self._path),
                operation,
                env=environment,
                cwd=str(self._path.parent),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise VolumePluginError(f"plugin {self.name} cannot be run: {error.strerror}") from error
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(within_s):
                said, complained = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                code = await process.wait()
        except TimeoutError:
            raise VolumePluginError(
                f"plugin {self.name} did not {operation} within {within_s:g} s, and was ended"
            ) from None
        finally:
            with suppress(ProcessLookupError):  # With all that it started.
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if code:
            why = complained.decode(errors="replace").strip()[-MAX_ERROR_CHARS:]
            raise VolumePluginError(
                f"plugin {self.name} failed to {operation} with exit code {code}: {why or 'it said nothing'}"
            )
        if operation == "delete" and not said.strip():
            return {}
        try:
            return msgspec.json.decode(said, type=dict[str, object])
        except msgspec.MsgspecError as error:
            raise VolumePluginError(
                f"plugin {self.name} is to answer {operation} with a JSON object: {error}"
            ) from None


async def _read(stream: asyncio.StreamReader) -> bytes:
    """Return the last MAX_OUTPUT_BYTES of the output, because errors are at its end."""
    said = b""
    while piece := await stream.read(MAX_OUTPUT_BYTES):
        said = (said + piece)[-MAX_OUTPUT_BYTES:]
    return said


def find_program_plugins(folder: Path, *, volumes: Path, node_id: str, node_pool: str) -> dict[str, VolumePlugin]:
    """Return the executable plug-ins.

    Files that everyone can write are skipped: they would run with the node's rights.
    """
    found: dict[str, VolumePlugin] = {}
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            mode = path.stat().st_mode
            is_ours = stat.S_ISREG(mode) and mode & 0o111 and not mode & stat.S_IWOTH
            if is_ours and NAME_PATTERN.fullmatch(path.name) and path.name != MKDIR:
                found[path.name] = ProgramPlugin(path, volumes=volumes, node_id=node_id, node_pool=node_pool)
    return found
