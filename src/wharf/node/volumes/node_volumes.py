"""The host volumes of this node, and the requests of servers to create, register and delete them.

A volume is stored on disk before it is created, so that no created volume can be lost. Requests are handled one at a
time.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.nodes.node import NodeHostVolume
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.volumes import DEFAULT_VOLUME_PLUGIN, PLUGIN_VERSION_ATTRIBUTE
from wharf.contract.wire.nodes import channel
from wharf.contract.wire.volumes import NodeVolume, NodeVolumeCreated
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.node.plugins import NodeEventReporter
from wharf.node.settings import NodeLocation, NodeSettings
from wharf.node.threads import ThreadGroup, run_in_thread
from wharf.node.volumes.plugins import MkdirPlugin, VolumePlugin, VolumePluginError, find_program_plugins
from wharf.world.durable_file import replace_file
from wharf.world.stored_json import read_stored_json

log = logging.getLogger(__name__)

VOLUMES_FILE: Final = "host_volumes.json"
DONE_REPLY: Final = ChannelReply(JSON_CONTENT_TYPE, b"{}")


class StoredVolume(msgspec.Struct, frozen=True):
    """A volume in the file of created volumes."""

    volume: NodeVolume
    is_created: bool = msgspec.field(name="is_there", default=False)
    """Whether the volume exists, so that `host_path` is known. False: a plugin may have begun to create it."""
    is_deleting: bool = False
    """Whether its plugin may have begun to delete it. Tasks cannot use it until it is created or registered again."""


class VolumeStore:
    """The file with the volumes that servers created on this node."""

    def __init__(self, file: Path) -> None:
        """Read the file, if it exists. Raises `DamagedFile`."""
        self._file = file
        remedy = "restore it from a copy, or delete it: then the node does not know its volumes; their data stays"
        self._by_id: dict[str, StoredVolume] = read_stored_json(file, dict[str, StoredVolume], remedy=remedy) or {}

    def list_volumes(self) -> list[StoredVolume]:
        return list(self._by_id.values())

    def find_volume(self, volume_id: str) -> StoredVolume | None:
        return self._by_id.get(volume_id)

    def save_volume(self, stored: StoredVolume) -> None:
        """Add or replace a volume and write the file. Raises OSError."""
        self._write({**self._by_id, stored.volume.id: stored})

    def delete_volume(self, volume_id: str) -> None:
        """Delete a volume and write the file. Raises OSError."""
        self._write({id: stored for id, stored in self._by_id.items() if id != volume_id})

    def _write(self, by_id: dict[str, StoredVolume]) -> None:
        """Replace the content of the file by these volumes, and keep them in memory. Raises OSError."""
        replace_file(self._file, msgspec.json.encode(by_id))
        self._by_id = by_id


class NodeVolumes:
    """All host volumes of this node: those in its configuration, and those that servers created."""

    def __init__(
        self,
        settings: NodeSettings,
        location: NodeLocation,
        node_id: str,
        *,
        report_event: NodeEventReporter,
        on_change: Callable[[], None],
        list_users: Callable[[str], list[str]],
        on_deleted: Callable[[str], None] = lambda _path: None,
    ) -> None:
        """Create the volumes of the configuration; `restore` adds those that servers created.

        `on_change` is called after each change, and `on_deleted` with the path of a deleted volume. `list_users`
        returns the ids of the allocations on this node that use the volume of this name and have not ended.
        """
        self._configured = {
            name: NodeHostVolume(name=name, path=volume.path, read_only=volume.read_only)
            for name, volume in settings.host_volume.items()
        }
        state_parent = location.state_folder.parent
        self._file = location.state_folder / VOLUMES_FILE
        self._volumes_folder = Path(settings.host_volumes_dir or state_parent / "host_volumes")
        self._plugins_folder = Path(settings.host_volume_plugin_dir or state_parent / "host_volume_plugins")
        self._node_id, self._node_pool = node_id, settings.node_pool
        self._store: VolumeStore | None = None
        """None before `restore`."""
        self._mkdir = MkdirPlugin(self._volumes_folder)
        self._plugins: dict[str, VolumePlugin] = {DEFAULT_VOLUME_PLUGIN: self._mkdir}
        self._versions: dict[str, str] = {}
        """The versions of the plugins that work."""
        self._report_event = report_event
        self._on_change = on_change
        self._list_users = list_users
        self._on_deleted = on_deleted
        self._request_lock = asyncio.Lock()
        self.by_name: dict[str, NodeHostVolume] = dict(self._configured)
        """The volumes that tasks can use now. The dict is changed in place, so callers can keep it."""

    @property
    def attributes(self) -> dict[str, str]:
        """The node attributes with the versions of the plugins that work."""
        return {PLUGIN_VERSION_ATTRIBUTE.format(name): version for name, version in self._versions.items()}

    async def probe(self) -> None:
        """Find the installed plugins, and store which of them work with their versions.

        A plugin that fails is logged once.
        """
        plugins = find_program_plugins(
            self._plugins_folder, volumes=self._volumes_folder, node_id=self._node_id, node_pool=self._node_pool
        )
        versions = {DEFAULT_VOLUME_PLUGIN: await self._mkdir.fingerprint()}
        for name, plugin in plugins.items():
            try:
                versions[name] = await plugin.fingerprint()
            except VolumePluginError as error:
                if name in self._versions or name not in self._plugins:  # Log once while it fails.
                    log.warning("volume plugin does not work plugin=%s error=%s", name, error)
        self._plugins = {DEFAULT_VOLUME_PLUGIN: self._mkdir, **plugins}
        self._versions = versions

    async def restore(self) -> None:
        """Load the stored volumes and make them available to tasks.

        Plugins create their volumes again: a volume may be a mount, which ends with a restart of the machine. Raises
        `DamagedFile`: without the file, a request could create a volume twice or delete the wrong folder.
        """
        await self.probe()
        store = self._store = VolumeStore(self._file)
        for stored in store.list_volumes():
            if stored.is_deleting:
                error = "the agent ended while the volume was deleted: delete it again"
                self._report_event(f"Volume {stored.volume.name} is missing", volume=stored.volume.id, error=error)
            elif stored.is_created:
                await self._restore_volume(store, stored)

    async def _restore_volume(self, store: VolumeStore, stored: StoredVolume) -> None:
        """Make a stored volume available to tasks; record a node event if it is missing.

        Its plugin, except `mkdir`, creates it again, and a changed path is stored.
        """
        volume = stored.volume
        plugin = self._plugins.get(volume.plugin_id)
        try:
            if volume.plugin_id and volume.plugin_id != DEFAULT_VOLUME_PLUGIN:
                if plugin is None:
                    raise VolumePluginError(f"plugin {volume.plugin_id} is not installed on this node any more")
                created = await plugin.create(volume)
                volume = msgspec.structs.replace(volume, host_path=created.host_path)
                if volume != stored.volume:
                    store.save_volume(StoredVolume(volume, is_created=True))
            if not await run_in_thread(ThreadGroup.VOLUMES, os.path.exists, volume.host_path):
                # It is not created again: tasks would take an empty folder for lost data.
                raise VolumePluginError(f"{volume.host_path} does not exist any more")
        except (VolumePluginError, OSError) as error:
            self._report_event(f"Volume {volume.name} is missing", volume=volume.id, error=str(error))
            return
        self._publish(volume)

    def _publish(self, volume: NodeVolume) -> None:
        """Add a volume to those that tasks can use."""
        self.by_name[volume.name] = NodeHostVolume(name=volume.name, path=volume.host_path, id=volume.id)

    # -- requests of servers

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handlers of requests to create, register and delete volumes, by verb of the node channel."""
        return {"volume_create": self._create, "volume_register": self._register, "volume_delete": self._delete}

    async def _create(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Create the volume that the request describes, and return its path and size as JSON. Raises Refusal."""
        requested = _decode_volume(request)
        async with self._request_lock:
            return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(await self._create_volume(requested)))

    async def _create_volume(self, requested: NodeVolume) -> NodeVolumeCreated:
        """Have the plugin create a volume, store it and make it available. Return its path and size.

        For an existing volume, the plugin applies changed parameters. Raises Refusal.
        """
        store = self._get_store()
        self._check_name(requested)
        plugin = self._plugins.get(requested.plugin_id)
        if plugin is None or requested.plugin_id not in self._versions:
            raise invalid_request(f"this node has no working plugin {requested.plugin_id}")
        existing = store.find_volume(requested.id)
        stored = StoredVolume(requested)
        if existing is not None:
            requested = msgspec.structs.replace(requested, host_path=existing.volume.host_path)
            stored = msgspec.structs.replace(existing, volume=requested)
        try:
            store.save_volume(stored)
            created = await plugin.create(requested)
            volume = msgspec.structs.replace(requested, host_path=created.host_path)
            store.save_volume(StoredVolume(volume, is_created=True))
        except VolumePluginError as error:
            if existing is None:
                await self._undo_creation(store, plugin, requested)
            raise invalid_request(str(error)) from error
        except OSError as error:
            raise _build_store_refusal(error) from error
        self._publish(volume)
        self._on_change()
        return created

    async def _undo_creation(self, store: VolumeStore, plugin: VolumePlugin, requested: NodeVolume) -> None:
        """Delete the folder and the stored entry of a volume whose creation failed. Raises Refusal."""
        try:
            await plugin.delete(requested)
        except VolumePluginError as error:
            log.warning("cleanup of failed volume creation failed volume=%s error=%s", requested.id, error)
        try:
            store.delete_volume(requested.id)
        except OSError as error:
            raise _build_store_refusal(error) from error

    async def _register(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Store an existing folder as a volume and make it available. Raises Refusal."""
        requested = _decode_volume(request)
        async with self._request_lock:
            store = self._get_store()
            self._check_name(requested)
            if not await run_in_thread(ThreadGroup.VOLUMES, os.path.exists, requested.host_path):
                raise invalid_request(f"{requested.host_path} does not exist on this node")
            # Without a plugin, because the node must not delete a folder that it did not create.
            volume = msgspec.structs.replace(requested, plugin_id="")
            try:
                store.save_volume(StoredVolume(volume, is_created=True))
            except OSError as error:
                raise _build_store_refusal(error) from error
            self._publish(volume)
            self._on_change()
        return DONE_REPLY

    async def _delete(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Have the plugin delete a volume, and delete its stored entry. Raises Refusal if it is in use.

        Tasks cannot use the volume meanwhile. If it is not deleted, they can again, unless an earlier deletion was
        interrupted. An unknown volume is not an error: it may be deleted already.
        """
        requested = _decode_volume(request)
        async with self._request_lock:
            store = self._get_store()
            stored = store.find_volume(requested.id)
            if stored is None:
                return DONE_REPLY
            plugin = self._require_deletable(stored)
            # Nothing is awaited between the check of the users and this, so no task starts to use the volume.
            self._unpublish(stored.volume)
            self._on_change()
            try:
                await self._delete_unpublished(store, stored, plugin)
            except OSError as error:
                raise _build_store_refusal(error) from error
            finally:
                self._publish_if_usable(store.find_volume(requested.id))
            self._on_deleted(stored.volume.host_path)
        return DONE_REPLY

    def _require_deletable(self, stored: StoredVolume) -> VolumePlugin | None:
        """Return the plugin that deletes the volume; `None` if its folder stays. Raises Refusal if it is in use."""
        volume = stored.volume
        users = self._list_users(volume.name)
        if users and stored.is_created:
            raise invalid_request(f"volume {volume.id} is in use by allocations: {', '.join(sorted(users))}")
        plugin = self._plugins.get(volume.plugin_id)
        if volume.plugin_id and plugin is None:
            raise invalid_request(
                f"volume {volume.id} cannot be deleted: plugin {volume.plugin_id} is not installed any more"
            )
        return plugin

    async def _delete_unpublished(self, store: VolumeStore, stored: StoredVolume, plugin: VolumePlugin | None) -> None:
        """Have the plugin delete a volume that tasks cannot use any more, and delete its stored entry.

        The deletion is stored before it begins, so that a restarted agent does not offer the rest of a folder. Raises
        Refusal if the plugin fails, and OSError.
        """
        volume = stored.volume
        if plugin is not None:
            store.save_volume(msgspec.structs.replace(stored, is_deleting=True))
            try:
                await plugin.delete(volume)
            except VolumePluginError as error:
                store.save_volume(stored)
                raise invalid_request(str(error)) from error
        store.delete_volume(volume.id)

    def _publish_if_usable(self, stored: StoredVolume | None) -> None:
        """Make a volume available again, unless it was deleted or a part of it may be."""
        if stored is not None and stored.is_created and not stored.is_deleting:
            self._publish(stored.volume)
            self._on_change()

    def _unpublish(self, volume: NodeVolume) -> None:
        """Remove a volume from those that tasks can use.

        A configured volume of the same name becomes available again.
        """
        published = self.by_name.get(volume.name)
        if published is not None and published.id == volume.id:
            del self.by_name[volume.name]
            if volume.name in self._configured:
                self.by_name[volume.name] = self._configured[volume.name]

    def _get_store(self) -> VolumeStore:
        """Return the store of created volumes. Raises Refusal before `restore`."""
        if self._store is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "this node has not read its volumes yet; try again")
        return self._store

    def _check_name(self, requested: NodeVolume) -> None:
        """Check that no other volume has the name of the requested one. Raises Refusal otherwise."""
        existing = self.by_name.get(requested.name)
        if existing is not None and existing.id != requested.id:
            origin = f"with id {existing.id}" if existing.id else "in its configuration"
            raise invalid_request(f'this node has a volume "{requested.name}" already, {origin}')


def _build_store_refusal(error: OSError) -> Refusal:
    """Return the refusal of a request because the file of volumes cannot be written."""
    return Refusal(RefusalCode.UNAVAILABLE, f"the node cannot store its list of volumes: {error.strerror}")


def _decode_volume(request: channel.ChannelRequest) -> NodeVolume:
    """Return the volume in the body of a request. Raises Refusal."""
    try:
        return msgspec.json.decode(request.body, type=NodeVolume)
    except msgspec.MsgspecError as error:
        raise invalid_request(f"invalid body: {error}") from None
