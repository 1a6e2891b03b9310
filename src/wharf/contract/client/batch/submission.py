"""`submit`: runs a script or a command as a batch job, from Python. `wharf submit` does the same from a shell."""

import getpass
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wharf.contract.client.batch.amounts import parse_memory_mb, parse_time_ns
from wharf.contract.client.batch.array_indexes import ArrayIndexes, parse_array
from wharf.contract.client.batch.job_builder import (
    MAX_SCRIPT_BYTES,
    BatchRequest,
    Script,
    build_batch_job,
    build_job_name,
    choose_script_name,
    read_script,
    split_command,
)
from wharf.contract.client.batch.needs import parse_needs
from wharf.contract.client.errors import RequestRefused
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.world import RealWorld, World

if TYPE_CHECKING:
    from wharf.contract.client.sync_client import SyncClient
    from wharf.contract.model.allocations.allocation import AllocationStub

AUTOMATIC: Final = "auto"
DRIVERS: Final = ("raw_exec", "exec")
"""The drivers that run programs of a node, in the order in which they are chosen. `exec` needs a node that runs as root."""
ID_SUFFIX_BYTES: Final = 3
"""Random bytes in the id of a job. A job that has the same id is not changed: the submission is refused."""
WAIT_S: Final = 30.0
"""How long one blocking query waits."""


class JobFailed(Exception):
    """The error for a batch job of which runs failed. `exit_code` is that of the programs if it is the same for all, else 1."""

    def __init__(self, job_id: str, text: str, exit_code: int) -> None:
        super().__init__(f"job {job_id}: {text}; `wharf job status {job_id}` shows more")
        self.job_id = job_id
        self.exit_code = exit_code


class BatchJob:
    """A submitted job. It continues when this object is deleted or the program ends."""

    def __init__(self, client: "SyncClient", job_id: str, namespace: str) -> None:
        self.id: Final = job_id
        self.namespace: Final = namespace
        self._client = client

    def wait(self) -> None:
        """Wait until the job has ended. Raises `JobFailed` if a run failed, or if the job was stopped."""
        response = self._client.jobs.read(self.id, namespace=self.namespace)
        while response.value.status != "dead":
            response = self._client.jobs.read(self.id, namespace=self.namespace, index=response.index, wait_s=WAIT_S)
        if response.value.stop:
            raise JobFailed(self.id, "it was stopped", 1)
        if response.value.has_steps:
            run = self._client.flows.read_run(self.id, namespace=self.namespace).value
            if not run.is_success:
                raise JobFailed(self.id, run.text, self._find_exit_code())
            return
        if any(group.array is not None for group in response.value.groups):
            counts = [each.counts for each in self._client.jobs.arrays(self.id, namespace=self.namespace).value.arrays]
            failed = sum(each.failed + each.canceled for each in counts)
            complete = sum(each.succeeded for each in counts)
        else:
            ended = [each.client_status for each in self.list_allocations()]
            failed, complete = ended.count(ClientStatus.FAILED), ended.count(ClientStatus.COMPLETE)
        if failed:
            raise JobFailed(self.id, f"{failed} of {failed + complete} runs failed", self._find_exit_code())

    def _find_exit_code(self) -> int:
        codes = {get_exit_code(each) for each in self.list_allocations() if each.client_status == "failed"}
        code = codes.pop() if len(codes) == 1 else 1
        return code or 1

    def list_allocations(self) -> "list[AllocationStub]":
        """Return the runs that have begun, with their states and nodes."""
        return self._client.jobs.allocations(self.id, namespace=self.namespace).value

    def cancel(self) -> None:
        """Stop the job: what runs is ended, and what waits never runs."""
        self._client.jobs.deregister(self.id, namespace=self.namespace)


def submit(
    client: "SyncClient",
    program: str | Path | Sequence[str],
    arguments: Sequence[str] = (),
    *,
    array: str | ArrayIndexes | None = None,
    fail_fast: bool = False,
    cores: int = 1,
    memory: str = "1G",
    time: str = "",
    gpus: int = 0,
    name: str = "",
    env: Mapping[str, str] | None = None,
    work_folder: str = "",
    pool: str = "",
    priority: int = 0,
    driver: str = AUTOMATIC,
    after: "str | BatchJob | Sequence[str | BatchJob]" = (),
    namespace: str = "default",
) -> BatchJob:
    """Submit a script or a command, and return the job.

    `program` is the path of a script, which travels with the job, or a list of words: a command that is on the nodes.
    `array` is a text such as `0-499%20`; each run has its index in `WHARF_ARRAY_INDEX`. `memory` is such as `4G`, `time` such
    as `2h`. `after` are jobs that must have succeeded before this one begins; `JOB:failed`, `JOB:ended` and `JOB:any` wait for
    another end. Raises `ValueError` for what cannot be submitted, and the errors of `client`.
    """
    script: Script | None = None
    if isinstance(program, str | Path):
        path = Path(program)
        with path.open("rb") as file:
            script = read_script(path.name, file.read(MAX_SCRIPT_BYTES + 1))
        words, default_name = tuple(arguments), choose_script_name(path.name)
    else:
        words = split_command((*program, *arguments))
        default_name = build_job_name(words[0])
    name = build_job_name(name) if name else default_name
    request = BatchRequest(
        id=f"{name}-{create_suffix()}",
        name=name,
        script=script,
        arguments=words,
        driver=choose_driver(client, driver, pool),
        cores=cores,
        memory_mb=parse_memory_mb(memory),
        time_ns=parse_time_ns(time) if time else 0,
        env=dict(env or {}),
        node_pool=pool,
        priority=priority,
        array=parse_array(array) if isinstance(array, str) else array,
        fail_fast=fail_fast,
        devices=({"Name": "gpu", "Count": gpus},) if gpus else (),
        work_folder=work_folder,
        meta=build_meta(),
        depends=parse_needs(_list_needed(after)),
    )
    client.jobs.register(build_batch_job(request), enforce_index=0, namespace=namespace)
    return BatchJob(client, request.id, namespace)


def _list_needed(after: "str | BatchJob | Sequence[str | BatchJob]") -> list[str]:
    """Return the jobs to wait for as texts."""
    jobs = [after] if isinstance(after, str | BatchJob) else after
    return [job.id if isinstance(job, BatchJob) else job for job in jobs]


def create_suffix(world: World | None = None) -> str:
    """Return the random end of a job's id, so that each submission is a job of its own."""
    return (world or RealWorld()).token_bytes(ID_SUFFIX_BYTES).hex()


def build_meta() -> dict[str, str]:
    """Return the metadata of a job that is submitted without a job file: who submitted it."""
    user = get_user_name()
    return {"submit_user": user} if user else {}


def get_user_name() -> str:
    """Return the name of the user of this machine, as jobs record it; empty if it is unknown."""
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):
        return ""


def choose_driver(client: "SyncClient", driver: str, pool: str) -> str:
    """Return the driver of a job. `auto` is the first of `DRIVERS` that a ready node of the pool has.

    If the nodes cannot be read, or none has one of them, it is `raw_exec`, which a node can have without running as root.
    """
    if driver != AUTOMATIC:
        return driver
    try:
        nodes = client.nodes.list().value
    except (RequestRefused, Unreachable):
        return DRIVERS[0]
    found = {
        name
        for node in nodes
        if node.status == "ready" and (not pool or pool == "all" or node.node_pool == pool)
        for name, info in (node.drivers or {}).items()
        if info.healthy
    }
    return next((name for name in DRIVERS if name in found), DRIVERS[0])


def get_exit_code(allocation: "AllocationStub") -> int:
    """Return the exit code of the task that ended last; 128 and its number for a signal. 0 if none is known."""
    ends = [
        (event.time, event.exit_code, event.signal)
        for state in (allocation.task_states or {}).values()
        for event in state.events or ()
        if event.type == "Terminated"
    ]
    if not ends:
        return 0
    _, code, signal = max(ends)
    return 128 + signal if signal else code
