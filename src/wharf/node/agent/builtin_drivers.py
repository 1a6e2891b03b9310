"""Builds the drivers that are part of the node agent, with the connection to the task supervisor that some of them use.

Drivers of plugins are loaded by `wharf.node.drivers.plugins`.
"""

from functools import partial

from wharf.node.agent.allocations.run_events import RunEvents
from wharf.node.drivers.docker.config import DockerSettings
from wharf.node.drivers.docker.driver import DockerDriver, find_socket
from wharf.node.drivers.exec import ExecDriver
from wharf.node.drivers.missing import MissingDriver
from wharf.node.drivers.mock import MockDriver
from wharf.node.drivers.port import Driver
from wharf.node.drivers.raw_exec import RawExecDriver
from wharf.node.node_mark import NodeMark
from wharf.node.sandbox import DEFAULT_FOLDERS
from wharf.node.settings import NodeLocation, NodeSettings
from wharf.node.supervisor.client import SupervisorClient
from wharf.node.supervisor.messages import ForgetRun
from wharf.world import World


class BuiltinDrivers:
    """The drivers that every node has: raw_exec, exec, docker, mock and the stand-in for missing drivers.

    All report to `run_events`.
    """

    def __init__(
        self, world: World, settings: NodeSettings, location: NodeLocation, owner: NodeMark, run_events: RunEvents
    ) -> None:
        self._run_events = run_events
        self.supervisor = SupervisorClient(
            world, location.state_folder, owner.node_id, run_events, tracking_method=settings.finds_left_overs_by
        )
        raw_exec = RawExecDriver(
            self.supervisor,
            is_allowed=settings.drivers.raw_exec.enabled,
            is_memory_limited=settings.drivers.raw_exec.bounds_memory,
        )
        exec_driver = ExecDriver(
            self.supervisor, settings.drivers.exec, settings.chroot_env or DEFAULT_FOLDERS, location.state_folder
        )
        self.supervised: tuple[Driver, ...] = (raw_exec, exec_driver)
        """The drivers whose runs the task supervisor holds."""
        self.docker = self._build_docker_driver(world, settings, location, owner)
        drivers: tuple[Driver, ...] = (
            *self.supervised,
            self.docker,
            MockDriver(run_events),
            MockDriver(run_events, name="mock_driver"),
            MissingDriver(run_events),
        )
        self.by_name = {driver.name: driver for driver in drivers}

    def _build_docker_driver(
        self, world: World, settings: NodeSettings, location: NodeLocation, owner: NodeMark
    ) -> DockerDriver:
        """Return the docker driver, configured from the node's settings."""
        docker = settings.drivers.docker
        return DockerDriver(
            world,
            self._run_events,
            socket=find_socket(docker.socket),
            settings=DockerSettings(
                volumes_enabled=docker.volumes_enabled,
                allow_privileged=docker.allow_privileged,
                allow_capabilities=docker.allow_caps,
                allow_runtimes=docker.allow_runtimes,
                allow_devices=docker.allow_devices,
                allow_security_opts=docker.allow_security_opts,
                extra_labels=docker.extra_labels,
            ),
            owner=owner,
            folder=location.state_folder / "containers",
            is_current_run=self._run_events.is_current_run,
        )

    def clean_up_when_stored(self, run: str) -> None:
        """Have docker driver or task supervisor delete an ended run, once the journal is on the disk.

        For runs that no task waits for.
        """
        if self.docker.has_run(run):
            self._run_events.run_when_stored(partial(self.docker.forget, run))
        else:
            self._run_events.run_when_stored(partial(self.supervisor.send_message, ForgetRun(run)))
