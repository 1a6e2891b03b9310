"""What `squeue`, `scancel` and `sacct` share: names of jobs such as `4711_[1-5]`, filters, and reading jobs from servers."""

import datetime
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from wharf.cli.common.errors import CliError
from wharf.cli.slurm.rows import COMPACT_STATES, LIVE_STATES, Row, build_rows
from wharf.contract.client.batch.array_indexes import ArrayError, parse_array

if TYPE_CHECKING:
    from wharf.cli.common.server_commands import Session
    from wharf.contract.wire.jobs.messages import JobStub

MAX_JOBS: Final = 500
"""Jobs whose runs are read, the newest first; each needs two requests."""
MAX_ALLOCATIONS: Final = 1_000
"""Runs of an array of which each has a line, the newest ones. Of the others, those with the same state share a line."""
MAX_EXPLAINED: Final = 20
"""Waiting jobs whose reason is read: an explanation examines all nodes."""
BATCH_FILTER: Final = 'Type == "batch" or Type == "sysbatch"'
_WITH_RANGE: Final = re.compile(r"(.+)_\[([0-9,:%-]+)\]")
_OF_STEP: Final = re.compile(r"([^\[\]]+_[^\[\]]+)\[(\d{1,10}(?:[,-]\d{1,10}){0,1000})\]")
"""Elements of a step, such as `release_test[0-3]`, as `squeue` and `sacct` print them."""
_WITH_INDEX: Final = re.compile(r"(.+)_(\d{1,10})")
_OFFSET: Final = re.compile(r"now([+-])(\d{1,6})(second|minute|hour|day|week)?s?")
_UNIT_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_TIME_FORMATS: Final = (
    "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d", "%m/%d/%y-%H:%M:%S", "%m/%d/%y-%H:%M", "%m/%d/%y",
)  # fmt: skip
_CLOCK_FORMATS: Final = ("%H:%M:%S", "%H:%M")


class JobSelector(NamedTuple):
    """A job, or elements of it, by the name that a user enters. `indexes` is None for all elements."""

    job_id: str
    """Of elements of a step that are not resolved yet, also `_` and the name of the step."""
    indexes: frozenset[int] | None = None
    step: str | None = None
    """The step of the elements, in a job with several groups; empty while it is not resolved, None for other jobs."""

    def matches(self, row: Row) -> bool:
        """Whether the row is one of these runs, or contains some of them."""
        if row.job_id != self.job_id:
            return False
        if self.indexes is None:
            return True
        if self.step is not None:
            step, _, index = row.label.removesuffix("]").partition("[")
            if step != self.step or (not row.members and not (index.isdecimal() and int(index) in self.indexes)):
                return False
            return not row.members or any(each in self.indexes for each in row.members)
        if row.members:
            return any(index in self.indexes for index in row.members)
        return row.label.isdecimal() and int(row.label) in self.indexes


def parse_job_names(text: str) -> list[JobSelector]:
    """Return the jobs of a list such as `4711,4712_3,4713_[1-5]`, without a look at the cluster. Raises CliError.

    A job whose own id ends with `_3` is named by its whole id: `resolve_job_name` finds it.
    """
    names: list[JobSelector] = []
    for part in re.split(r",(?![^\[]*\])", text):
        word = part.strip()
        if not word:
            continue
        found = _WITH_RANGE.fullmatch(word)
        if found is not None:
            try:
                names.append(JobSelector(found[1], frozenset(parse_array(found[2]).indexes)))
            except ArrayError as error:
                raise CliError(f"{word}: {error}") from error
            continue
        found = _OF_STEP.fullmatch(word)
        if found is not None:
            names.append(JobSelector(found[1], frozenset(parse_array(found[2]).indexes), step=""))
            continue
        found = _WITH_INDEX.fullmatch(word)
        names.append(JobSelector(word) if found is None else JobSelector(found[1], frozenset((int(found[2]),))))
    return names


def resolve_job_name(name: JobSelector, job_ids: Iterable[str]) -> JobSelector:
    """Return the name of a whole job if one has the id that looks like an index, such as `run_3`.

    The name of elements of a step is divided into the job and the step: both may contain `_`.
    """
    if name.step == "":
        splits = [at for at, letter in enumerate(name.job_id) if letter == "_" and name.job_id[:at] in job_ids]
        if not splits:
            return name
        return name._replace(job_id=name.job_id[: splits[-1]], step=name.job_id[splits[-1] + 1 :])
    if name.indexes is None or len(name.indexes) != 1 or name.job_id in job_ids:
        return name
    whole = f"{name.job_id}_{next(iter(name.indexes))}"
    return JobSelector(whole) if whole in job_ids else name


class RowFilter(NamedTuple):
    """Which lines a command shows. Empty fields match every line."""

    names: tuple[JobSelector, ...] = ()
    users: frozenset[str] = frozenset()
    job_names: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()

    def matches(self, row: Row) -> bool:
        return (
            (not self.names or any(name.matches(row) for name in self.names))
            and (not self.users or row.user in self.users)
            and (not self.job_names or row.name in self.job_names)
            and (not self.partitions or row.partition in self.partitions)
            and (not self.accounts or row.account in self.accounts)
            and (not self.nodes or row.node in self.nodes)
            and (not self.states or row.state in self.states)
        )


def parse_states(text: str) -> frozenset[str]:
    """Return the states of a list such as `PD,RUNNING`; `all` is every state. Raises CliError."""
    by_short = {short: state for state, short in COMPACT_STATES.items()}
    states: set[str] = set()
    for part in text.split(","):
        word = part.strip().upper()
        if word == "ALL":
            states.update(COMPACT_STATES)
            continue
        state = by_short.get(word, word)
        if state not in COMPACT_STATES:
            raise CliError(f"unknown state {part.strip()}: use {', '.join(COMPACT_STATES)}, or their short forms")
        states.add(state)
    return frozenset(states)


def split_list(text: str) -> frozenset[str]:
    """Return the words of a list that commas separate."""
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def parse_time_ns(text: str, now_ns: int) -> int:
    """Return a time such as `2026-11-29`, `08:30`, `now-2hours`, `today` or `midnight`, in ns since 1970. Raises CliError."""
    now = datetime.datetime.fromtimestamp(now_ns / 1e9)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    word = text.strip()
    named = {"now": now, "today": midnight, "midnight": midnight, "noon": midnight.replace(hour=12)}
    found = _OFFSET.fullmatch(word)
    if word in named:
        time = named[word]
    elif found is not None:
        seconds = int(found[2]) * _UNIT_SECONDS[found[3] or "second"]
        time = now + datetime.timedelta(seconds=seconds if found[1] == "+" else -seconds)
    else:
        time = _parse_calendar_time(word, midnight)
    return int(time.timestamp() * 1e9)


def _parse_calendar_time(word: str, midnight: datetime.datetime) -> datetime.datetime:
    for pattern in _TIME_FORMATS:
        try:
            return datetime.datetime.strptime(word, pattern)
        except ValueError:
            continue
    for pattern in _CLOCK_FORMATS:
        try:
            clock = datetime.datetime.strptime(word, pattern)
        except ValueError:
            continue
        return midnight.replace(hour=clock.hour, minute=clock.minute, second=clock.second)
    raise CliError(f"expected a time such as 2026-11-29, 2026-11-29T08:30, 08:30 or now-2hours, got {word}")


def list_batch_jobs(session: "Session", filter: RowFilter, *, only_live: bool) -> "list[JobStub]":
    """Return the batch jobs that may have lines of the filter, the newest first. Raises CliError for unknown names."""
    found = [
        stub
        for stub in session.client.jobs.list.iterate(
            per_page=1_000, filter=BATCH_FILTER, meta=True, progress=not only_live
        )
        if not stub.periodic and not stub.parameterized_job
    ]
    if not found:
        session.require_namespace()
    ids = {stub.id for stub in found}
    selected_ids = {resolve_job_name(name, ids).job_id for name in filter.names}
    if missing := sorted(selected_ids - ids):
        raise CliError(f"no batch job {missing[0]}: `wharf squeue` lists waiting and running ones, `wharf sacct` all")
    return sorted(
        (
            stub
            for stub in found
            if (not selected_ids or stub.id in selected_ids)
            and (not only_live or stub.status != "dead")
            and (not filter.partitions or stub.node_pool in filter.partitions)
            and (not filter.job_names or stub.name in filter.job_names)
            and (not filter.users or (stub.meta or {}).get("submit_user", "") in filter.users)
        ),
        key=lambda stub: (stub.submitted_ns, stub.id),
        reverse=True,
    )


def read_rows(session: "Session", stubs: "Sequence[JobStub]") -> Iterator[Row]:
    """Yield the lines of jobs. A job that was purged in the meantime has none."""
    from wharf.contract.client.errors import NotFound

    for stub in stubs[:MAX_JOBS]:
        try:
            job = session.client.jobs.read(stub.id, namespace=stub.namespace).value
            run = session.client.flows.read_run(stub.id, namespace=stub.namespace).value if job.is_run else None
        except NotFound:
            continue
        has_arrays = any(group.array is not None for group in job.groups)
        # Read before the allocations: an element that begins in between has an allocation, and is not only a state.
        arrays = session.client.jobs.arrays(stub.id, namespace=stub.namespace).value.arrays if has_arrays else ()
        allocations = session.client.jobs.allocations(
            stub.id, namespace=stub.namespace, newest=MAX_ALLOCATIONS if has_arrays else None
        ).value
        steps = {each.name: each for each in run.steps} if run is not None else None
        yield from build_rows(job, allocations, arrays, steps, stub.submitted_ns)


def resolve_names(filter: RowFilter, stubs: "Sequence[JobStub]") -> RowFilter:
    """Return the filter with names of whole jobs where an id only looks like one with an index."""
    ids = {stub.id for stub in stubs}
    return filter._replace(names=tuple(resolve_job_name(name, ids) for name in filter.names))


def is_live(row: Row) -> bool:
    return row.state in LIVE_STATES
