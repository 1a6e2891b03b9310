"""The driver that runs a program of the machine within walls: by the supervisor, and by `wharf.node.walls`.

Keys: `command` (required), `args`, `work_dir` (absolute, as the task sees it), `pid_mode` and `ipc_mode` (`private` or
`host`), `cap_add`, `cap_drop`. The program sees its own folder as `/`, those folders of the machine that the operator names
(only to read), its own processes and no others. It is `nobody` unless the task names a user, and can gain no rights.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.agent.keeper_link import KeeperLink
from wharf.node.drivers import processes_beside
from wharf.node.drivers.beside import Command, CommandOrder
from wharf.node.drivers.port import CannotStart, Health, TaskOrder, View
from wharf.node.drivers.raw_exec import read_config
from wharf.node.drivers.supervised import Supervised, log_order
from wharf.node.measuring.tasks import groups_of
from wharf.node.settings import ExecSettings
from wharf.node.supervisor.messages import Limits, RunOrder, StartRun
from wharf.node.supervisor.run import OWN_PIDS
from wharf.node.walls import (
    Binding,
    Device,
    Inside,
    Rights,
    Root,
    WrongRight,
    WrongRoot,
    entry,
    launch,
    rights_like,
    rights_of,
)
from wharf.node.walls.launching import BETWEEN, DEFAULT_PATH, NEEDED, NEEDED_INSIDE, SHELL

KEYS: Final = ("command", "args", "work_dir", "pid_mode", "ipc_mode", "cap_add", "cap_drop")
PRIVATE: Final = "private"
MODES: Final = (PRIVATE, "host")
OF_USER: Final = ("HOME", "USER", "LOGNAME", "MAIL", "SHELL", "PWD", "OLDPWD")
"""Variables of the agent that tell who it is: a task is somebody else."""
TRIAL_S: Final = 20.0


class Asked(NamedTuple):
    """What a job says of the program, looked through."""

    command: str
    arguments: tuple[str, ...]
    work_folder: str
    has_own_pids: bool
    has_own_ipc: bool
    rights: Rights


class Exec(Supervised):
    name = "exec"
    view = View.WALLED

    def __init__(self, link: KeeperLink, settings: ExecSettings, folders: Mapping[str, str], state: Path) -> None:
        """`folders`: of the machine that tasks see, with where they see them. `state`: for a trial."""
        super().__init__(link)
        self._settings = settings
        self._folders = folders
        self._state = state
        self._works = False

    async def probe(self) -> Health:
        if os.geteuid() != 0:
            return Health(is_healthy=False, why="walls need a node that runs as root", is_there=False)
        missing = [path for path in NEEDED if not os.access(path, os.X_OK)]
        if missing:
            return Health(is_healthy=False, why=f"the machine lacks {', '.join(missing)}", is_there=False)
        if not self._works:
            # Whether a machine lets namespaces and mounts be made is known for sure only by trying.
            if why := await self._trial():
                return Health(is_healthy=False, why=why)
            self._works = True
        return Health(is_healthy=True, attributes={"driver.exec.bounds": ",".join(self._link.bounds) or "none"})

    async def start(self, order: TaskOrder) -> None:
        asked = self._asked(order.config, order.user)
        given = order.given
        volumes = [Binding(each.path, each.target, each.is_read_only) for each in given.volumes]
        network = order.network
        root = Root(
            order.task_folder,
            order.shared_folder,
            [*self._bindings(), *volumes],
            files=[Binding(source, target) for source, target in network.files] if network is not None else [],
            has_own_ipc=asked.has_own_ipc,
        )
        environment = with_user(order.environment, asked.rights)
        try:
            program = root.find_program(asked.command, asked.work_folder, environment["PATH"])
            inside = Inside(
                environment,
                asked.rights,
                asked.work_folder,
                hostname=network.hostname if network is not None else "",
                has_own_ipc=asked.has_own_ipc,
                devices=tuple(Device(each.path, each.target, _mode_of(each.permissions)) for each in given.devices),
            )
            launched = launch(root, inside, (program, *asked.arguments))
        except WrongRoot as error:
            raise CannotStart(str(error)) from error
        limits = Limits(
            memory_mb=given.memory_max_mb or given.memory_mb,
            cpu_shares=given.cpu_mhz,
            processes=self._settings.pids_limit,
            cores=given.cores,
        )
        self._link.say(
            StartRun(
                RunOrder(
                    order.run,
                    launched.command,
                    BETWEEN,
                    work_folder="/",
                    log=log_order(order),
                    limits=limits,
                    network=network.namespace if network is not None else "",
                    leads_itself=True,
                    has_walls=True,
                    has_own_pids=asked.has_own_pids,
                    papers=launched.papers,
                )
            )
        )

    async def run_beside(self, order: CommandOrder) -> Command:
        pid = self._link.pid_of(order.run)
        if pid is None:
            raise CannotStart("the task does not run")
        try:
            rights = rights_like(pid)
        except OSError as error:
            raise CannotStart("the task does not run") from error
        environment = {**with_user(order.environment, rights), processes_beside.MARK: order.name}
        inside = Inside(environment, rights, "/")
        paper = os.memfd_create("paper")
        try:
            leads = processes_beside.TAKE_TERMINAL if order.is_tty else ()
            way_in = entry(pid, inside, groups_of(pid, order.run), paper_at=paper, leads=leads)
            os.write(paper, way_in.paper.encode())
            between = {**BETWEEN, processes_beside.MARK: order.name}
            through = processes_beside.Entry(way_in.words, between, papers=(paper,), takes_terminal=order.is_tty)
            return await processes_beside.enter(order, through, owner=Path(f"/proc/{pid}"))
        finally:
            os.close(paper)

    def _asked(self, config: Mapping[str, object], user: str) -> Asked:
        """Raises CannotStart."""
        command, arguments, work_folder = read_config(config, KEYS, self.name)
        try:
            rights = rights_of(
                user,
                add=_texts(config, "cap_add"),
                drop=_texts(config, "cap_drop"),
                allowed=self._settings.allow_caps,
            )
        except WrongRight as error:
            raise CannotStart(f"config: {error}", is_final=True) from error
        pids = _mode(config, "pid_mode", self._settings.default_pid_mode)
        ipc = _mode(config, "ipc_mode", self._settings.default_ipc_mode)
        return Asked(command, tuple(arguments), work_folder or "/", pids == PRIVATE, ipc == PRIVATE, rights)

    def _bindings(self) -> list[Binding]:
        return [Binding(source, target) for source, target in self._folders.items()]

    async def _trial(self) -> str:
        """Why a program cannot be run within walls here; nothing where it can."""
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self._state) as made:
            try:
                root = self._root_of_trial(Path(made))
                rights = rights_of("", add=(), drop=(), allowed=())
                return await _run_trial(root, Inside({"PATH": DEFAULT_PATH}, rights, "/"))
            except (WrongRoot, WrongRight, OSError) as error:
                return str(error)

    def _root_of_trial(self, made: Path) -> Root:
        """Raises WrongRoot."""
        for name in ("task", "alloc"):
            (made / name).mkdir()
        root = Root(made / "task", made / "alloc", self._bindings())
        if missing := [path for path in NEEDED_INSIDE if not os.path.lexists(root.on_machine(path))]:
            raise WrongRoot(f"the folders of client.chroot_env lack {', '.join(missing)}")
        return root


async def _run_trial(root: Root, inside: Inside) -> str:
    """What it says when it fails. Raises WrongRoot."""
    made = (os.memfd_create("paper"), os.memfd_create("paper"))
    try:
        tried = launch(root, inside, ("/usr/bin/env", "true"), papers_at=made)
        for handle, paper in zip(made, tried.papers, strict=True):
            os.write(handle, paper.encode())
        process = await asyncio.create_subprocess_exec(
            *OWN_PIDS, SHELL, "-c", '( exec "$@" ) & wait "$!"', "trial", *tried.command,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=BETWEEN, pass_fds=made,
        )  # fmt: skip
        try:
            async with asyncio.timeout(TRIAL_S):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"a trial of walls did not end within {TRIAL_S:g} s"
    finally:
        for handle in made:
            os.close(handle)
    return said.decode(errors="replace").strip() or "a trial of walls failed" if process.returncode else ""


def with_user(environment: Mapping[str, str], rights: Rights) -> dict[str, str]:
    """What tells of the agent's user tells of the task's, unless the job itself says so."""
    found = {name: value for name, value in environment.items() if name not in OF_USER or value != os.environ.get(name)}
    found.setdefault("PATH", DEFAULT_PATH)
    for name, value in (("HOME", rights.home), ("USER", rights.name), ("LOGNAME", rights.name)):
        found.setdefault(name, value)
    return found


def _mode_of(permissions: str) -> str:
    """Of a device's file, from the letters that control groups have."""
    letters = "".join(letter for letter in "rw" if letter in permissions)
    return f"u={letters},go="


def _texts(config: Mapping[str, object], name: str) -> list[str]:
    """Raises CannotStart."""
    found = config.get(name) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise CannotStart(f"config: `{name}` is to be a list of names", is_final=True)
    return list(found)


def _mode(config: Mapping[str, object], name: str, default: str) -> str:
    """Raises CannotStart."""
    found = config.get(name) or default
    if found not in MODES:
        raise CannotStart(f'config: `{name}` is to be "private" or "host"', is_final=True)
    return str(found)
