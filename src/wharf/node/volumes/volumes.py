"""All volumes of this node by name, and what servers ask about them. One change at a time."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from wharf.model.host_volume import DEFAULT_PLUGIN, PLUGIN_ATTRIBUTE
from wharf.model.node import NodeHostVolume
from wharf.model.refusal import Code, Refusal, invalid
from wharf.node.agent.asked import JSON, Answer
from wharf.node.agent.channel import Reply
from wharf.node.settings import HostVolumeSettings
from wharf.node.volumes.kept import Kept, KeptVolume
from wharf.node.volumes.plugins import Mkdir, PluginFailed, VolumePlugin, programs_in
from wharf.wire import channel
from wharf.wire.volume_shapes import NodeVolume, NodeVolumeMade

log = logging.getLogger(__name__)

FILE: Final = "host_volumes.json"
DONE: Final = Reply(JSON, b"{}")

Tell = Callable[..., None]
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
        tell: Tell,
        on_change: Callable[[], None],
        users_of: Callable[[str], list[str]],
        on_gone: Callable[[str], None] = lambda _path: None,
    ) -> None:
        """`users_of`: the allocations here that use the volume of this name and are not over.

        `on_gone`: hears the path of one that is deleted.
        """
        self._static = {
            name: NodeHostVolume(name=name, path=volume.path, read_only=volume.read_only)
            for name, volume in static.items()
        }
        self._file = state_folder / FILE
        self._kept: Kept | None = None
        self._mkdir = Mkdir(volumes_folder)
        self._folders = (plugins_folder, volumes_folder)
        self._node = (node_id, node_pool)
        self._plugins: dict[str, VolumePlugin] = {DEFAULT_PLUGIN: self._mkdir}
        self._versions: dict[str, str] = {}
        self._tell = tell
        self._on_change = on_change
        self._users_of = users_of
        self._on_gone = on_gone
        self._changing = asyncio.Lock()
        self.by_name: dict[str, NodeHostVolume] = dict(self._static)
        """Those that tasks may use now. The same map for as long as the node lives."""

    @property
    def attributes(self) -> dict[str, str]:
        return {PLUGIN_ATTRIBUTE.format(name): version for name, version in self._versions.items()}

    async def probe(self) -> None:
        """Which plugins there are, and which of them work."""
        plugins, volumes = self._folders
        node_id, pool = self._node
        found = programs_in(plugins, volumes=volumes, node_id=node_id, node_pool=pool)
        versions = {DEFAULT_PLUGIN: await self._mkdir.fingerprint()}
        for name, plugin in found.items():
            try:
                versions[name] = await plugin.fingerprint()
            except PluginFailed as error:
                if name in self._versions or name not in self._plugins:
                    log.warning("a plugin of host volumes is left out: %s", error)
        self._plugins = {DEFAULT_PLUGIN: self._mkdir, **found}
        self._versions = versions

    async def restore(self) -> None:
        """What was there before this agent. What a plugin made is asked of it again: it may be a mount, and gone."""
        await self.probe()
        try:
            kept = self._kept = Kept(self._file)
        except (OSError, ValueError) as error:
            # Nothing is changed of what is not known: neither made over it, nor taken away.
            self._tell("The node cannot know which volumes it made; it takes no orders about them", error=str(error))
            return
        for each in kept.all():
            if each.is_there:
                await self._restore(kept, each)

    async def _restore(self, kept: Kept, each: KeptVolume) -> None:
        volume = each.volume
        plugin = self._plugins.get(volume.plugin_id)
        try:
            if volume.plugin_id and volume.plugin_id != DEFAULT_PLUGIN:
                if plugin is None:
                    raise PluginFailed(f"there is no plugin {volume.plugin_id} here any more")
                made = await plugin.create(volume)
                volume = msgspec.structs.replace(volume, host_path=made.host_path)
                if volume != each.volume:
                    kept.put(KeptVolume(volume, is_there=True))
            if not await asyncio.to_thread(os.path.exists, volume.host_path):
                # An empty folder in its place would look like data that are lost.
                raise PluginFailed(f"{volume.host_path} is gone")
        except (PluginFailed, OSError) as error:
            self._tell(f"Volume {volume.name} is not there", volume=volume.id, error=str(error))
            return
        self._show(volume)

    def _show(self, volume: NodeVolume) -> None:
        self.by_name[volume.name] = NodeHostVolume(name=volume.name, path=volume.host_path, id=volume.id)

    # -- what servers ask

    def answers(self) -> dict[str, Answer]:
        return {"volume_create": self._create, "volume_register": self._register, "volume_delete": self._delete}

    async def _create(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        wanted = _read(question)
        async with self._changing:
            return Reply(JSON, msgspec.json.encode(await self._made(wanted)))

    async def _made(self, wanted: NodeVolume) -> NodeVolumeMade:
        """Also of one that is there: what was changed of it is asked of its plugin."""
        kept = self._known()
        self._refuse_taken(wanted)
        plugin = self._plugins.get(wanted.plugin_id)
        if plugin is None or wanted.plugin_id not in self._versions:
            raise invalid(f"this node has no plugin {wanted.plugin_id} that works")
        before = kept.get(wanted.id)
        if before is not None:
            wanted = msgspec.structs.replace(wanted, host_path=before.volume.host_path)
        try:
            kept.put(KeptVolume(wanted, is_there=before is not None and before.is_there))
            made = await plugin.create(wanted)
            volume = msgspec.structs.replace(wanted, host_path=made.host_path)
            kept.put(KeptVolume(volume, is_there=True))
        except PluginFailed as error:
            if before is None:
                await self._undo(kept, plugin, wanted)
            raise invalid(str(error)) from error
        except OSError as error:
            raise _cannot_keep(error) from error
        self._show(volume)
        self._on_change()
        return made

    async def _undo(self, kept: Kept, plugin: VolumePlugin, wanted: NodeVolume) -> None:
        """What a failed try may have left."""
        try:
            await plugin.delete(wanted)
        except PluginFailed as error:
            log.warning("what was begun of a volume cannot be taken away: %s", error, extra={"volume": wanted.id})
        try:
            kept.drop(wanted.id)
        except OSError as error:
            raise _cannot_keep(error) from error

    async def _register(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        wanted = _read(question)
        async with self._changing:
            kept = self._known()
            self._refuse_taken(wanted)
            if not await asyncio.to_thread(os.path.exists, wanted.host_path):
                raise invalid(f"there is nothing at {wanted.host_path} on this node")
            # Whoever made it takes it away: no plugin is told of it.
            volume = msgspec.structs.replace(wanted, plugin_id="")
            try:
                kept.put(KeptVolume(volume, is_there=True))
            except OSError as error:
                raise _cannot_keep(error) from error
            self._show(volume)
            self._on_change()
        return DONE

    async def _delete(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        wanted = _read(question)
        async with self._changing:
            kept = self._known()
            each = kept.get(wanted.id)
            if each is None:
                return DONE  # It was never made here, or is gone already.
            users = self._users_of(each.volume.name)
            if users and each.is_there:
                raise invalid(f"volume {wanted.id} is in use by allocations: {', '.join(sorted(users))}")
            if each.volume.plugin_id:
                plugin = self._plugins.get(each.volume.plugin_id)
                if plugin is None:
                    raise invalid(f"this node has no plugin {each.volume.plugin_id} any more that could take it away")
                try:
                    await plugin.delete(each.volume)
                except PluginFailed as error:
                    raise invalid(str(error)) from error
            try:
                kept.drop(wanted.id)
            except OSError as error:
                raise _cannot_keep(error) from error
            self._hide(each.volume)
            self._on_gone(each.volume.host_path)
            self._on_change()
        return DONE

    def _hide(self, volume: NodeVolume) -> None:
        shown = self.by_name.get(volume.name)
        if shown is not None and shown.id == volume.id:
            del self.by_name[volume.name]
            if volume.name in self._static:
                self.by_name[volume.name] = self._static[volume.name]

    def _known(self) -> Kept:
        if self._kept is None:
            raise Refusal(Code.UNAVAILABLE, "this node cannot know which volumes it made: see its events")
        return self._kept

    def _refuse_taken(self, wanted: NodeVolume) -> None:
        has = self.by_name.get(wanted.name)
        if has is not None and has.id != wanted.id:
            whose = f"as {has.id}" if has.id else "by its configuration"
            raise invalid(f'this node has a volume "{wanted.name}" already, {whose}')


def _cannot_keep(error: OSError) -> Refusal:
    return Refusal(Code.UNAVAILABLE, f"the node cannot write down which volumes it has: {error.strerror}")


def _read(question: channel.Ask) -> NodeVolume:
    try:
        return msgspec.json.decode(question.body, type=NodeVolume)
    except msgspec.MsgspecError as error:
        raise invalid(f"the body cannot be read: {error}") from None
