"""Creates and starts the container of a run, or continues an earlier start of the same run.

Requests are repeated while the engine is unreachable, up to a time limit.
"""

import asyncio
from pathlib import Path
from typing import Final

from wharf.contract.model.drivers.docker import DockerConfig
from wharf.node.drivers.docker import responses
from wharf.node.drivers.docker.config import DockerConfigError, DockerSettings, parse_config
from wharf.node.drivers.docker.container import (
    ALLOCATION_LABEL,
    RUN_LABEL,
    build_container_body,
    build_labels,
    make_container_name,
)
from wharf.node.drivers.docker.container_watcher import ContainerRun, find_run_container
from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineNotFound, EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.images import TaskImages, normalize_image_name
from wharf.node.drivers.port import CannotStart, TaskOrder
from wharf.node.node_mark import NodeMark
from wharf.world import World

RETRY_DELAY_S: Final = 1.0
"""Seconds before a request is repeated."""
ENGINE_WAIT_S: Final = 60.0
"""Seconds that a start waits for an unreachable engine."""
CONFLICT_STATUS: Final = 409
CREATED_STATE: Final = "created"
UNKNOWN_CONTAINER: Final = "?"
"""The container of a run while the engine is asked to create it: it may exist, even if the request fails."""


class ContainerStarter:
    """Creates and starts the containers of tasks.

    `progress_folder` is for files with the position up to which each container's output was copied.
    """

    def __init__(
        self,
        world: World,
        engine: ContainerEngine,
        images: TaskImages,
        settings: DockerSettings,
        *,
        owner: NodeMark,
        progress_folder: Path,
    ) -> None:
        self._world = world
        self._engine = engine
        self._images = images
        self._settings = settings
        self._owner = owner
        self._progress_folder = progress_folder
        self.can_join_namespaces = True
        """Whether the engine can run a container in an existing network namespace; Docker cannot."""

    async def start(self, run: ContainerRun, order: TaskOrder) -> None:
        """Create and start the run's container and store its id in `run`. Raises CannotStart.

        A container that an earlier call created is used. Requests are repeated for `ENGINE_WAIT_S` while the engine is
        unreachable.
        """
        config = self._parse_config(order)
        deadline_s = self._world.monotonic_s() + ENGINE_WAIT_S
        while True:
            try:
                container = await find_run_container(self._engine, run.name)
                if container is None:
                    await self._images.ensure_image(run.name, config, order)
                    run.container = UNKNOWN_CONTAINER
                    run.container = await self._create_container(config, order)
                else:
                    run.container = container.id
                run.is_found.set()
                if container is None or container.state == CREATED_STATE:
                    await self._engine.start_container(run.container)
                return
            except EngineUnreachable as error:
                if self._world.monotonic_s() > deadline_s:
                    raise CannotStart(str(error)) from error
                await asyncio.sleep(RETRY_DELAY_S)
            except EngineRejected as error:
                raise CannotStart(f"the container engine refused the request: {error}") from error

    def _parse_config(self, order: TaskOrder) -> DockerConfig:
        """Return the validated config of the task. Raises CannotStart."""
        try:
            return parse_config(order.config, self._settings)
        except DockerConfigError as error:
            raise CannotStart(f"config: {error}", is_final=True) from error

    async def _create_container(self, config: DockerConfig, order: TaskOrder) -> str:
        """Create the container and return its id.

        Removes the container of an earlier run of the same task. Raises CannotStart, EngineRejected and
        EngineUnreachable.
        """
        self._check_network(config, order)
        self._progress_folder.mkdir(parents=True, exist_ok=True)
        image = normalize_image_name(config.image)
        body = build_container_body(config, order, build_labels(order, self._owner, self._settings.extra_labels))
        body["Image"] = image
        name = make_container_name(order)
        for attempt in range(max(1, config.container_exists_attempts)):
            try:
                return (await self._engine.create_container(name, body)).id
            except EngineNotFound as error:
                raise CannotStart(f"image {image} does not exist in the engine: {error}") from error
            except EngineRejected as error:
                existing = await self._engine.find_container(name)
                if existing is None and error.status != CONFLICT_STATUS:
                    raise
                if existing is not None:
                    if not _is_of_earlier_run(existing, order):
                        raise
                    await self._engine.remove_container(existing.id)
                elif attempt:
                    await asyncio.sleep(RETRY_DELAY_S)
        raise CannotStart(f"the container name {name} is in use by another container")

    def _check_network(self, config: DockerConfig, order: TaskOrder) -> None:
        """Check that the engine and the group support what the task's network needs. Raises CannotStart otherwise."""
        if order.network is not None and not self.can_join_namespaces:
            why = "this engine cannot join the group's network: use Podman, or set the group's network mode to `host`"
            raise CannotStart(why, is_final=True)
        group_labels = [port.label for port in order.given.ports]
        if unknown_labels := [label for label in config.ports if label not in group_labels]:
            why = (
                f"config: ports: the group has no port {', '.join(unknown_labels)}; "
                f"it has {', '.join(group_labels) or 'none'}"
            )
            raise CannotStart(why, is_final=True)


def _is_of_earlier_run(container: responses.ContainerInfo, order: TaskOrder) -> bool:
    """Return whether the container belongs to another run of the same task. A run is one start of a task."""
    labels = container.config.labels or {}
    return labels.get(ALLOCATION_LABEL) == order.allocation_id and labels.get(RUN_LABEL) != order.run
