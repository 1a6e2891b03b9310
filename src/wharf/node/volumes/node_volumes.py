"""Which volumes this node was told to have: on disk before anything is made, so that nothing is made and forgotten.

All volumes of this node by name, and what servers ask about them. One change at a time.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.nodes.node import NodeHostVolume
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.volumes import DEFAULT_VOLUME_PLUGIN, PLUGIN_VERSION_ATTRIBUTE
from wharf.contract.wire.nodes import channel
from wharf.contract.wire.volumes import NodeVolume, NodeVolumeCreated
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.node.settings import HostVolumeSettings
from wharf.node.volumes.plugins import MkdirPlugin, VolumePlugin, VolumePluginError, find_program_plugins
from wharf.world.durable_file import replace_file


class StoredVolume(msgspec.Struct, frozen=True):
    volume: NodeVolume
    is_there: bool = False
    """It was made, or found, and `host_path` says where."""


class VolumeStore:
    """Raises OSError where it cannot be read or written, and ValueError where it is damaged."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._by_id: dict[str, StoredVolume] = {}
        if file.exists():
            try:
                self._by_id = msgspec.json.decode(file.read_bytes(), type=dict[str, StoredVolume])
            except msgspec.MsgspecError as error:
                raise ValueError(f"{file} cannot be read: {error}") from error

    def list_volumes(self) -> list[StoredVolume]:
        return list(self._by_id.values())

    def find_volume(self, volume_id: str) -> StoredVolume | None:
        return self._by_id.get(volume_id)

    def save_volume(self, kept: StoredVolume) -> None:
        self._write({**self._by_id, kept.volume.id: kept})

    def delete_volume(self, volume_id: str) -> None:
        self._write({id: kept for id, kept in self._by_id.items() if id != volume_id})

    def _write(self, by_id: dict[str, StoredVolume]) -> None:
        replace_file(self._file, msgspec.json.encode(by_id))
        self._by_id = by_id


log = logging.getLogger(__name__)

VOLUMES_FILE: Final = "host_volumes.json"
DONE_REPLY: Final = ChannelReply(JSON_CONTENT_TYPE, b"{}")

NodeEventReporter = Callable[..., None]
"""(message, **details): an event of the node."""


class NodeVolumes:
    def __init__(
        self,
        static: Mapping[str, HostVolumeSettings],
        *,
        state_folder: Path,
        volumes_folder: Path,
        plugins_folder: Path,
        node_id: str,
        node_pool: str,
        report_event: NodeEventReporter,
        on_change: Callable[[], None],
        list_users: Callable[[str], list[str]],
        on_deleted: Callable[[str], None] = lambda _path: None,
    ) -> None:
        """`users_of`: the allocations here that use the volume of this name and are not over.

        `on_gone`: hears the path of one that is deleted.
        """
        self._static = {
            name: NodeHostVolume(name=name, path=volume.path, read_only=volume.read_only)
            for name, volume in static.items()
        }
        self._file = state_folder / VOLUMES_FILE
        self._kept: VolumeStore | None = None
        self._mkdir = MkdirPlugin(volumes_folder)
        self._folders = (plugins_folder, volumes_folder)
        self._node = (node_id, node_pool)
        self._plugins: dict[str, VolumePlugin] = {DEFAULT_VOLUME_PLUGIN: self._mkdir}
        self._versions: dict[str, str] = {}
        self._tell = report_event
        self._on_change = on_change
        self._users_of = list_users
        self._on_gone = on_deleted
        self._changing = asyncio.Lock()
        self.by_name: dict[str, NodeHostVolume] = dict(self._static)
        """Those that tasks may use now. The same map for as long as the node lives."""

    @property
    def attributes(self) -> dict[str, str]:
        return {PLUGIN_VERSION_ATTRIBUTE.format(name): version for name, version in self._versions.items()}

    async def probe(self) -> None:
        """Which plugins there are, and which of them work."""
        plugins, volumes = self._folders
        node_id, pool = self._node
        found = find_program_plugins(plugins, volumes=volumes, node_id=node_id, node_pool=pool)
        versions = {DEFAULT_VOLUME_PLUGIN: await self._mkdir.fingerprint()}
        for name, plugin in found.items():
            try:
                versions[name] = await plugin.fingerprint()
            except VolumePluginError as error:
                if name in self._versions or name not in self._plugins:
                    log.warning("a plugin of host volumes is left out: %s", error)
        self._plugins = {DEFAULT_VOLUME_PLUGIN: self._mkdir, **found}
        self._versions = versions

    async def restore(self) -> None:
        """What was there before this agent. What a plugin made is asked of it again: it may be a mount, and gone."""
        await self.probe()
        try:
            kept = self._kept = VolumeStore(self._file)
        except (OSError, ValueError) as error:
            # Nothing is changed of what is not known: neither made over it, nor taken away.
            self._tell("The node cannot know which volumes it made; it takes no orders about them", error=str(error))
            return
        for each in kept.list_volumes():
            if each.is_there:
                await self._restore(kept, each)

    async def _restore(self, kept: VolumeStore, each: StoredVolume) -> None:
        volume = each.volume
        plugin = self._plugins.get(volume.plugin_id)
        try:
            if volume.plugin_id and volume.plugin_id != DEFAULT_VOLUME_PLUGIN:
                if plugin is None:
                    raise VolumePluginError(f"there is no plugin {volume.plugin_id} here any more")
                made = await plugin.create(volume)
                volume = msgspec.structs.replace(volume, host_path=made.host_path)
                if volume != each.volume:
                    kept.save_volume(StoredVolume(volume, is_there=True))
            if not await asyncio.to_thread(os.path.exists, volume.host_path):
                # An empty folder in its place would look like data that are lost.
                raise VolumePluginError(f"{volume.host_path} is gone")
        except (VolumePluginError, OSError) as error:
            self._tell(f"Volume {volume.name} is not there", volume=volume.id, error=str(error))
            return
        self._show(volume)

    def _show(self, volume: NodeVolume) -> None:
        self.by_name[volume.name] = NodeHostVolume(name=volume.name, path=volume.host_path, id=volume.id)

    # -- what servers ask

    def handlers(self) -> dict[str, VerbHandler]:
        return {"volume_create": self._create, "volume_register": self._register, "volume_delete": self._delete}

    async def _create(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        wanted = _read(question)
        async with self._changing:
            return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(await self._made(wanted)))

    async def _made(self, wanted: NodeVolume) -> NodeVolumeCreated:
        """Also of one that is there: what was changed of it is asked of its plugin."""
        kept = self._known()
        self._refuse_taken(wanted)
        plugin = self._plugins.get(wanted.plugin_id)
        if plugin is None or wanted.plugin_id not in self._versions:
            raise invalid_request(f"this node has no plugin {wanted.plugin_id} that works")
        before = kept.find_volume(wanted.id)
        if before is not None:
            wanted = msgspec.structs.replace(wanted, host_path=before.volume.host_path)
        try:
            kept.save_volume(StoredVolume(wanted, is_there=before is not None and before.is_there))
            made = await plugin.create(wanted)
            volume = msgspec.structs.replace(wanted, host_path=made.host_path)
            kept.save_volume(StoredVolume(volume, is_there=True))
        except VolumePluginError as error:
            if before is None:
                await self._undo(kept, plugin, wanted)
            raise invalid_request(str(error)) from error
        except OSError as error:
            raise _cannot_keep(error) from error
        self._show(volume)
        self._on_change()
        return made

    async def _undo(self, kept: VolumeStore, plugin: VolumePlugin, wanted: NodeVolume) -> None:
        """What a failed try may have left."""
        try:
            await plugin.delete(wanted)
        except VolumePluginError as error:
            log.warning("what was begun of a volume cannot be taken away: %s", error, extra={"volume": wanted.id})
        try:
            kept.delete_volume(wanted.id)
        except OSError as error:
            raise _cannot_keep(error) from error

    async def _register(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        wanted = _read(question)
        async with self._changing:
            kept = self._known()
            self._refuse_taken(wanted)
            if not await asyncio.to_thread(os.path.exists, wanted.host_path):
                raise invalid_request(f"there is nothing at {wanted.host_path} on this node")
            # Whoever made it takes it away: no plugin is told of it.
            volume = msgspec.structs.replace(wanted, plugin_id="")
            try:
                kept.save_volume(StoredVolume(volume, is_there=True))
            except OSError as error:
                raise _cannot_keep(error) from error
            self._show(volume)
            self._on_change()
        return DONE_REPLY

    async def _delete(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        wanted = _read(question)
        async with self._changing:
            kept = self._known()
            each = kept.find_volume(wanted.id)
            if each is None:
                return DONE_REPLY  # It was never made here, or is gone already.
            users = self._users_of(each.volume.name)
            if users and each.is_there:
                raise invalid_request(f"volume {wanted.id} is in use by allocations: {', '.join(sorted(users))}")
            if each.volume.plugin_id:
                plugin = self._plugins.get(each.volume.plugin_id)
                if plugin is None:
                    raise invalid_request(
                        f"this node has no plugin {each.volume.plugin_id} any more that could take it away"
                    )
                try:
                    await plugin.delete(each.volume)
                except VolumePluginError as error:
                    raise invalid_request(str(error)) from error
            try:
                kept.delete_volume(wanted.id)
            except OSError as error:
                raise _cannot_keep(error) from error
            self._hide(each.volume)
            self._on_gone(each.volume.host_path)
            self._on_change()
        return DONE_REPLY

    def _hide(self, volume: NodeVolume) -> None:
        shown = self.by_name.get(volume.name)
        if shown is not None and shown.id == volume.id:
            del self.by_name[volume.name]
            if volume.name in self._static:
                self.by_name[volume.name] = self._static[volume.name]

    def _known(self) -> VolumeStore:
        if self._kept is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "this node cannot know which volumes it made: see its events")
        return self._kept

    def _refuse_taken(self, wanted: NodeVolume) -> None:
        has = self.by_name.get(wanted.name)
        if has is not None and has.id != wanted.id:
            whose = f"as {has.id}" if has.id else "by its configuration"
            raise invalid_request(f'this node has a volume "{wanted.name}" already, {whose}')


def _cannot_keep(error: OSError) -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, f"the node cannot write down which volumes it has: {error.strerror}")


def _read(question: channel.ChannelRequest) -> NodeVolume:
    try:
        return msgspec.json.decode(question.body, type=NodeVolume)
    except msgspec.MsgspecError as error:
        raise invalid_request(f"the body cannot be read: {error}") from None
