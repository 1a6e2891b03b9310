"""`map`: calls a Python function for each item on the nodes of a cluster, and returns futures.

The function and the items travel with one array job, pickled by cloudpickle. A node needs the same version of Python with
cloudpickle. One thread follows the job and reads results.
"""

import base64
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from wharf.contract.client.batch.amounts import parse_memory_mb, parse_time_ns
from wharf.contract.client.batch.array_indexes import ArrayIndexes
from wharf.contract.client.batch.function_worker import MAX_RESULT_BYTES
from wharf.contract.client.batch.job_builder import (
    WORK_FOLDER,
    BatchRequest,
    build_batch_job,
    build_file,
    build_job_name,
)
from wharf.contract.client.batch.submission import (
    AUTOMATIC,
    build_meta,
    choose_driver,
    create_suffix,
    get_exit_code,
)
from wharf.contract.client.connection import connect
from wharf.contract.client.errors import NotFound, RequestRefused
from wharf.contract.client.transport import Unreachable

if TYPE_CHECKING:
    from wharf.contract.client.settings import ClientSettings
    from wharf.contract.client.sync_client import SyncClient
    from wharf.contract.model.allocations.allocation import AllocationStub

T = TypeVar("T")
R = TypeVar("R")
MAX_ITEMS: Final = 10_000
"""Items of one call. The client holds a future for each, and reads a file for each result."""
MAX_PICKLED_BYTES: Final = 384 * 1024
"""Function and items together, as text. Each version of a job stores them, and a node reads them for each run."""
MIN_INTERVAL_S: Final = 0.2
"""The client reads the states of the runs at most this often."""
ALLOCATIONS_PER_INTERVAL: Final = 500
"""A larger job is read less often, because each reply has all its allocations."""
WAIT_S: Final = 10.0
READ_ATTEMPTS: Final = 3
WORKER_NAME: Final = "wharf_function_worker.py"
RESULT_PATH: Final = "main/local/result"


class RemoteTraceback(Exception):
    """The traceback of an error on a node. It is the cause of the error that the caller receives."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(Exception):
    """The error for a call that raised something that cannot be pickled, or whose program ended without a result."""


class RemoteFuture(Future[R]):
    """The result of one call. `alloc_id` is its allocation, once it has begun.

    `running()` is always false, so that a call can be canceled until it has ended.
    """

    def __init__(self, index: int, stop: "Callable[[RemoteFuture[R]], None]") -> None:
        super().__init__()
        self.index: Final = index
        self.alloc_id = ""
        self._stop = stop

    def cancel(self) -> bool:
        """Cancel the call, also if it runs; its program is ended. Return False if it has ended already."""
        was_canceled = self.cancelled()
        is_canceled = super().cancel()
        if is_canceled and not was_canceled:
            self._stop(self)
        return is_canceled


class RemoteMap(list["RemoteFuture[R]"], Generic[R]):
    """The futures of one call of `map`, in the order of the items."""

    def __init__(self, futures: "Iterable[RemoteFuture[R]]", collector: "_Collector[R]") -> None:
        super().__init__(futures)
        self._collector = collector

    @property
    def job_id(self) -> str:
        return self._collector.job_id

    def results(self, timeout_s: float | None = None) -> list[R]:
        """Return all results in the order of the items. Raises the error of the first call that failed."""
        return [future.result(timeout_s) for future in self]

    def cancel(self) -> None:
        """Stop the job, and cancel every call that has not ended."""
        self._collector.stop_job()


def map(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    cores: int = 1,
    memory: str = "1G",
    time: str = "",
    gpus: int = 0,
    max_running: int = 0,
    fail_fast: bool = False,
    name: str = "",
    env: Mapping[str, str] | None = None,
    pool: str = "",
    priority: int = 0,
    driver: str = AUTOMATIC,
    python: str = "",
    settings: "ClientSettings | None" = None,
    namespace: str = "default",
) -> RemoteMap[R]:
    """Call the function with each item on the cluster, and return futures at once.

    `python` is the interpreter on the nodes, by default the path of this one. `settings` select the servers; without them,
    environment variables do. The job continues when this program ends. Raises `ValueError` for what cannot be sent, and
    `ImportError` without cloudpickle (`pip install wharfinger[map]`).
    """
    pickled_items = [_pickle(item) for item in items]
    if len(pickled_items) > MAX_ITEMS:
        raise ValueError(
            f"{len(pickled_items):,} items, and one call takes {MAX_ITEMS:,}: pass lists of items as items"
        )
    files = {"function.b64": _pickle(function), "items.b64": "".join(f"{line}\n" for line in pickled_items)}
    size = sum(len(text) for text in files.values())
    if size > MAX_PICKLED_BYTES:
        raise ValueError(
            f"function and items have {size:,} bytes, and {MAX_PICKLED_BYTES:,} travel with a job: pass paths of data that "
            "the nodes can read"
        )
    client = connect(settings)
    name = build_job_name(name or getattr(function, "__name__", "").strip("<>") or "map")
    request = BatchRequest(
        id=f"{name}-{create_suffix()}",
        name=name,
        arguments=(python or sys.executable, f"{WORK_FOLDER}/{WORKER_NAME}", WORK_FOLDER, "${WHARF_ALLOC_INDEX}"),
        driver=choose_driver(client, driver, pool),
        cores=cores,
        memory_mb=parse_memory_mb(memory),
        time_ns=parse_time_ns(time) if time else 0,
        env=dict(env or {}),
        node_pool=pool,
        priority=priority,
        array=ArrayIndexes(tuple(range(len(pickled_items))), max_running),
        fail_fast=fail_fast,
        devices=({"Name": "gpu", "Count": gpus},) if gpus else (),
        meta=build_meta(),
        files=(
            build_file(WORKER_NAME, Path(__file__).with_name("function_worker.py").read_text()),
            *(build_file(file, text) for file, text in files.items()),
        ),
    )
    collector: _Collector[R] = _Collector(client, connect(settings), request.id, namespace, len(pickled_items))
    if not pickled_items:
        collector.close()
        return RemoteMap((), collector)
    client.jobs.register(build_batch_job(request), enforce_index=0, namespace=namespace)
    collector.start()
    return RemoteMap(collector.futures, collector)


def _pickle(value: object) -> str:
    """Return a value pickled by cloudpickle, as one line of text."""
    import cloudpickle

    return base64.b64encode(cloudpickle.dumps(value)).decode()


class _Collector(Generic[R]):
    """Follows the job of one call of `map` on a thread of its own, and sets the futures.

    A client belongs to one thread at a time: the thread has `client`, and callers that cancel share `control`.
    """

    def __init__(self, client: "SyncClient", control: "SyncClient", job_id: str, namespace: str, count: int) -> None:
        self.job_id: Final = job_id
        self._client = client
        self._control = control
        self._namespace = namespace
        self._pace = threading.Event()
        self._lock = threading.Lock()
        self._is_stopped = False
        self.futures: Final = [RemoteFuture[R](index, self._stop_call) for index in range(count)]

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"results of {self.job_id}", daemon=True).start()

    def close(self) -> None:
        self._client.close()
        with self._lock:
            self._control.close()

    def stop_job(self) -> None:
        """Stop the job, and cancel all open futures."""
        with self._lock:
            if not self._is_stopped and not all(future.done() for future in self.futures):
                self._control.jobs.deregister(self.job_id, namespace=self._namespace)
            self._is_stopped = True
        for future in self.futures:
            future.cancel()
        self._pace.set()

    def _stop_call(self, future: RemoteFuture[R]) -> None:
        """Cancel the element of a call, so that it ends if it runs and never begins otherwise. The job is stopped with its last
        call."""
        with self._lock:
            if self._is_stopped:
                return
            if all(each.done() for each in self.futures):
                self._is_stopped = True
                self._control.jobs.deregister(self.job_id, namespace=self._namespace)
            else:
                with suppress(NotFound):  # The job was deleted meanwhile.
                    self._control.jobs.stop_elements(self.job_id, str(future.index), namespace=self._namespace)
        self._pace.set()

    def _run(self) -> None:
        try:
            self._follow()
        except (RequestRefused, Unreachable) as error:
            for future in self.futures:
                _set_error(future, RemoteError(f"job {self.job_id}: the servers cannot be asked for results: {error}"))
        finally:
            self.close()

    def _follow(self) -> None:
        """Read states until every future is done."""
        index = 0
        while not self._is_stopped:
            if index:
                response = self._client.jobs.allocations(
                    self.job_id, namespace=self._namespace, index=index, wait_s=WAIT_S
                )
            else:
                response = self._client.jobs.allocations(self.job_id, namespace=self._namespace)
            index = response.index
            newest = _select_newest(response.value)
            for allocation_index, allocation in newest.items():
                self._apply(self.futures[allocation_index], allocation)
            if all(future.done() for future in self.futures):
                return
            if self._client.jobs.read(self.job_id, namespace=self._namespace).value.status == "dead":
                self._finish()
                return
            self._pace.clear()
            self._pace.wait(MIN_INTERVAL_S * max(1, len(response.value) // ALLOCATIONS_PER_INTERVAL))

    def _apply(self, future: RemoteFuture[R], allocation: "AllocationStub") -> None:
        """Set the future to the state of its newest allocation."""
        future.alloc_id = allocation.id
        if not future.done() and _has_outcome(allocation):
            self._set_outcome(future, allocation)

    def _finish(self) -> None:
        """Set the futures that have no result though the job has ended.

        Read the allocations again: they may have ended, and the job with them, since they were read last.
        """
        newest = _select_newest(self._client.jobs.allocations(self.job_id, namespace=self._namespace).value)
        for future in self.futures:
            allocation = newest.get(future.index)
            if not future.done() and allocation is not None and _has_outcome(allocation):
                self._set_outcome(future, allocation)
            elif not future.done():
                _set_error(future, RemoteError(f"job {self.job_id} was stopped before the call ended"))

    def _set_outcome(self, future: RemoteFuture[R], allocation: "AllocationStub") -> None:
        """Read the result of an allocation that has ended, and set the future."""
        try:
            kind, pickled, text, trace = pickle.loads(self._read_result(allocation.id))
            value: Any = pickle.loads(pickled) if pickled else RemoteError(text)
        except NotFound:
            _set_error(future, RemoteError(self._describe_end(allocation)))
            return
        except (RequestRefused, Unreachable) as error:
            _set_error(future, RemoteError(f"the result of {allocation.name} cannot be read: {error}"))
            return
        except Exception as error:  # Pickled data of another version, or of a class that this program lacks.
            _set_error(future, RemoteError(f"the result of {allocation.name} cannot be unpickled: {error!r}"))
            return
        if kind == "value":
            if future.set_running_or_notify_cancel():
                future.set_result(value)
            return
        value.__cause__ = RemoteTraceback(trace)
        _set_error(future, value)

    def _read_result(self, alloc_id: str) -> bytes:
        """Return the file with the outcome. Raises `NotFound` if the program wrote none."""
        for attempt in range(READ_ATTEMPTS):
            try:
                pieces: list[bytes] = []
                size = 0
                for piece in self._client.files.cat(alloc_id, RESULT_PATH, namespace=self._namespace):
                    pieces.append(piece)
                    size += len(piece)
                    if size > MAX_RESULT_BYTES * 2:
                        raise ValueError(f"the result has more than {size:,} bytes")
                return b"".join(pieces)
            except NotFound:
                raise
            except (RequestRefused, Unreachable):
                if attempt == READ_ATTEMPTS - 1:
                    raise
                self._pace.wait(MIN_INTERVAL_S)
        raise AssertionError("the loop returns or raises")

    def _describe_end(self, allocation: "AllocationStub") -> str:
        """Return why an allocation has no result."""
        from wharf.contract.model.allocations.failure_reasons import summarize_failures

        reasons = [failure.reason for failure in summarize_failures([allocation])]
        code = get_exit_code(allocation)
        reason = "; ".join(reasons) or f"the program ended with exit code {code}"
        return f"{allocation.name} has no result: {reason}; `wharf alloc logs {allocation.id[:8]}` shows its output"


def _select_newest(allocations: "Iterable[AllocationStub]") -> "dict[int, AllocationStub]":
    """Return the newest allocation of each index."""
    return {
        int(allocation.name.rpartition("[")[2].rstrip("]")): allocation
        for allocation in sorted(allocations, key=lambda each: each.create_index)
    }


def _has_outcome(allocation: "AllocationStub") -> bool:
    """Return whether an allocation decides about its call. One that was stopped before its end does not: the call runs again, as
    after a drain, unless it was canceled."""
    if allocation.client_status not in ("complete", "failed"):
        return False
    return allocation.desired_status == "run" or (
        allocation.client_status == "complete" and not _was_killed(allocation)
    )


def _was_killed(allocation: "AllocationStub") -> bool:
    """Return whether the node has ended a task of an allocation, or never began one."""
    return any(
        state.started_at is None or any(event.type == "Killed" for event in state.events or ())
        for state in (allocation.task_states or {}).values()
    )


def _set_error(future: RemoteFuture[R], error: BaseException) -> None:
    """Set the error of a future that is not done. One that its caller canceled stays canceled."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
