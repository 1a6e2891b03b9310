"""`wharf import nomad`: copies the configuration of a Nomad cluster to a Wharf cluster, and reports what it cannot copy.

`source` reads Nomad and `import_plan` decides. This module reads Wharf, writes the changes and prints the result.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
import msgspec

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import CONNECTION_OPTIONS, ServerCommand, Session, build_settings
from wharf.cli.lazy_group import CommandEntry, LazyGroup
from wharf.cli.nomad.import_plan import (
    WRITING_ACTIONS,
    Action,
    Change,
    ImportKind,
    JobComparison,
    OwnState,
    SourceJob,
    SourceState,
    plan_import,
    prepare_job,
)
from wharf.cli.nomad.source import Uncopied, UnreadKind, connect_source
from wharf.contract.client import ClientSettings, Unreachable
from wharf.contract.client.errors import Conflict, Forbidden, InvalidRequest, NotFound, RequestRefused
from wharf.contract.model.namespaces import DEFAULT_NAMESPACE
from wharf.contract.model.node_pools import DEFAULT_NODE_POOL
from wharf.contract.model.refusal import RefusalCode, RefusalReason
from wharf.contract.wire.acl import PolicyRequest, PolicyView, RoleRequest
from wharf.contract.wire.variables import VariableView
from wharf.job_files.validation_issues import format_validation_issues

if TYPE_CHECKING:
    from wharf.contract.client import SyncClient

T = TypeVar("T")

MODULE: Final = "wharf.cli.nomad.importing"
COMMANDS: Final = {
    "nomad": CommandEntry(MODULE, "nomad", "Copy the configuration and the jobs of a Nomad cluster."),
}
MAX_LISTED: Final = 20
"""Records of one action that the text output names; --verbose and --json name all of them."""
_HELP_BY_OPTION: Final = {
    "address": "URL of a server of Nomad.  [NOMAD_ADDR]",
    "namespace": "",
    "region": "Region of Nomad.  [NOMAD_REGION]",
    "token": "Management token of Nomad.  [NOMAD_TOKEN]",
    "stale": "",
    "ca_cert": "Certificate of the authority of Nomad's certificates.  [NOMAD_CACERT]",
    "client_cert": "Client certificate for Nomad.  [NOMAD_CLIENT_CERT]",
    "client_key": "Private key of the client certificate.  [NOMAD_CLIENT_KEY]",
    "tls_skip_verify": "Accept any certificate of Nomad.  [NOMAD_SKIP_VERIFY]",
}


def _describe_source(option: click.Option) -> click.Option:
    """Return a connection option that concerns Nomad instead of Wharf. Options without a help text are hidden."""
    text = _HELP_BY_OPTION.get(str(option.name), "")
    return click.Option(list(option.opts), is_flag=option.is_flag, help=text, hidden=not text)


class ImportCommand(ServerCommand):
    """A command whose connection options concern Nomad. The servers of Wharf come from `--to` and `WHARF_…`."""

    connection_options = tuple(_describe_source(option) for option in CONNECTION_OPTIONS)

    def build_settings(self, context: click.Context, connection: Mapping[str, Any]) -> ClientSettings:
        """Return the settings of the Wharf cluster, and pass those of Nomad to the command's function."""
        if connection["namespace"]:
            raise click.UsageError("--namespace: the import copies all namespaces; leave the option out", context)
        if not connection["address"] and not os.environ.get("NOMAD_ADDR"):
            raise click.UsageError("set --address or NOMAD_ADDR to the URL of a Nomad server", context)
        source = build_settings(connection, prefixes=("NOMAD_",))
        own_options = {**dict.fromkeys(connection), "address": context.params.pop("to"), "stale": False}
        own = build_settings(own_options, prefixes=("WHARF_",))
        if set(source.addresses) & set(own.addresses):
            raise click.UsageError(
                f"{source.addresses[0]} is the address of both clusters: set --address or NOMAD_ADDR to Nomad, and --to or "
                "WHARF_ADDR to Wharf",
                context,
            )
        context.params["source_settings"] = source
        return own


@click.group("import", cls=LazyGroup, entries=COMMANDS)
def import_group() -> None:
    """Copy the configuration of another scheduler."""


@click.command(cls=ImportCommand)
@click.option("--plan", "only_plans", is_flag=True, help="Print what the import would change, and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace records of Wharf that differ from those of Nomad.")
@click.option("--stopped", "stops_jobs", is_flag=True, help="Import all jobs as stopped; `wharf job start` starts one.")
@click.option("--to", help="URL of a Wharf server; separate several by commas.  [WHARF_ADDR; http://127.0.0.1:4646]")
def nomad(
    session: Session, source_settings: ClientSettings, only_plans: bool, overwrite: bool, stops_jobs: bool
) -> None:
    """Copy the configuration and the jobs of a Nomad cluster to a Wharf cluster.

    Copies quotas, node pools, namespaces, scheduler settings, policies, roles, variables and jobs. You can repeat the
    import: it writes only what is missing. The token of Wharf is WHARF_TOKEN.

    wharf import nomad --address https://nomad.example.org:4646 --to http://10.0.0.1:4646 --plan
    """
    source = connect_source(source_settings)
    with _report_wharf_errors():
        session.client.operator.scheduler_configuration()  # Nomad is read for minutes: find out before whether Wharf replies.
    try:
        _print_step(session, f"reading Nomad at {source_settings.addresses[0]}")
        state = source.read()
    finally:
        source.close()
    _print_step(
        session, f"comparing {len(state.jobs):,} jobs and {len(state.variables):,} variables with those of Wharf"
    )
    with _report_wharf_errors():
        own = _read_own_state(session.client, state, stops_jobs=stops_jobs)
    changes = plan_import(state, own, overwrite=overwrite, stops_jobs=stops_jobs)
    lost_connection = ""
    if not only_plans:
        changes, lost_connection = _write_changes(session.client, changes)
    report = ImportReport(
        is_plan=only_plans,
        records=[ImportedRecord(each.kind.value, each.name, each.action.value, each.reason) for each in changes],
        not_imported=source.uncopied,
        unread=source.unread,
        absent=source.absent,
    )
    session.print_result(report, lambda: _render_report(report, is_verbose=session.is_verbose))
    _raise_failures(report, lost_connection)


def _print_step(session: Session, text: str) -> None:
    """Print what a user of a terminal waits for: with thousands of jobs, each step takes minutes."""
    if session.is_terminal:
        print_notice(text)


class ImportedRecord(msgspec.Struct, frozen=True, rename="pascal"):
    """A record in the report of an import, without its content, which may be secret."""

    kind: str
    name: str
    action: str
    reason: str = ""


class ImportReport(msgspec.Struct, frozen=True, rename="pascal"):
    """The result of an import, or of its plan."""

    is_plan: bool
    records: list[ImportedRecord]
    not_imported: list[Uncopied]
    unread: list[UnreadKind]
    absent: list[UnreadKind]


@contextlib.contextmanager
def _report_wharf_errors() -> Iterator[None]:
    """Turn errors of Wharf in the block, before anything is written, into a CliError that names the settings of Wharf."""
    try:
        yield
    except Forbidden as error:
        raise CliError(
            f"Wharf: {error.text}: set WHARF_TOKEN to a management token of the Wharf cluster; nothing was imported"
        ) from error
    except Unreachable as error:
        raise CliError(f"{error}; set --to or WHARF_ADDR to a server of Wharf; nothing was imported") from error


def _read_own_state(client: "SyncClient", source: SourceState, *, stops_jobs: bool) -> OwnState:
    """Return the records of Wharf with which those of Nomad are compared."""
    node_pools, namespaces = tuple(client.node_pools.list.iterate()), tuple(client.namespaces.list.iterate())
    missing = _MissingParents(
        {each.name for each in source.namespaces} - {each.name for each in namespaces},
        {each.name for each in source.node_pools} - {each.name for each in node_pools},
    )
    return OwnState(
        quotas=tuple(client.quotas.list.iterate()),
        node_pools=node_pools,
        namespaces=namespaces,
        scheduler=client.operator.scheduler_configuration().value.scheduler_config,
        policies=_read_access(lambda: _read_policies(client, source)),
        roles=_read_access(lambda: client.acl.roles.list.iterate()),
        variables=tuple(_read_variables(client, source.variables)),
        jobs={
            (job.namespace, job.id): _compare_job(client, job, missing, stops_jobs=stops_jobs) for job in source.jobs
        },
    )


def _read_access(read: Callable[[], Iterable[T]]) -> tuple[T, ...] | None:
    """Return policies or roles of Wharf; None if access control is off."""
    try:
        return tuple(read())
    except InvalidRequest as error:
        if error.reason is RefusalReason.ACL_DISABLED:
            return None
        raise


def _read_policies(client: "SyncClient", source: SourceState) -> Iterator[PolicyView]:
    """Yield the policies of Wharf that have the name of one of Nomad, with their rules."""
    names = {policy.name for policy in source.policies}
    for stub in client.acl.policies.list.iterate():
        if stub.name in names:
            yield client.acl.policies.read(stub.name).value


def _read_variables(client: "SyncClient", variables: Sequence[VariableView]) -> Iterator[VariableView]:
    for variable in variables:
        try:
            yield client.variables.read(variable.path, namespace=variable.namespace).value
        except NotFound:
            continue


class _MissingParents(NamedTuple):
    """The namespaces and node pools that the import creates before the jobs."""

    namespaces: set[str]
    node_pools: set[str]

    def replace_in(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job with `default` in place of these, so that Wharf can validate it before they exist."""
        replaced = dict(document)
        if document.get("Namespace") in self.namespaces:
            replaced["Namespace"] = DEFAULT_NAMESPACE
        if document.get("NodePool") in self.node_pools:
            replaced["NodePool"] = DEFAULT_NODE_POOL
        return replaced


def _compare_job(client: "SyncClient", job: SourceJob, missing: _MissingParents, *, stops_jobs: bool) -> JobComparison:
    """Return how a job of Nomad differs from the one in Wharf, by a dry run that changes nothing."""
    document = prepare_job(job, stops_jobs=stops_jobs)
    try:
        version = client.jobs.read(job.id, namespace=job.namespace).value.job_modify_index
    except NotFound:
        return _check_new_job(client, missing.replace_in(document))
    try:
        plan = client.jobs.plan(job.id, document, namespace=job.namespace)
    except InvalidRequest as error:
        return JobComparison(exists=True, errors=_join_lines(format_validation_issues(error.text)))
    is_same = plan.diff is not None and plan.diff.type == "None"
    return JobComparison(exists=True, is_same=is_same, version=version, warnings=_join_lines(plan.warnings))


def _check_new_job(client: "SyncClient", document: Mapping[str, Any]) -> JobComparison:
    try:
        found = client.jobs.validate(document, namespace=str(document.get("Namespace")))
    except InvalidRequest as error:
        return JobComparison(errors=_join_lines(format_validation_issues(error.text)))
    errors = found.validation_errors or ()
    return JobComparison(errors=_join_lines("\n".join(errors)), warnings=_join_lines(found.warnings))


def _join_lines(text: str) -> str:
    """Return several lines of a server as one, without headings such as `2 errors occurred:`."""
    lines = [line.strip().removeprefix("* ") for line in text.splitlines()]
    return "; ".join(line for line in lines if line and not line.endswith((" occurred:", "warning:", "warnings:")))


def _write_changes(client: "SyncClient", changes: Sequence[Change]) -> tuple[list[Change], str]:
    """Write the changes in order. Return them with their outcomes, and the error if the connection to Wharf broke.

    A change that Wharf refuses does not stop the others. After a broken connection, the rest is not written.
    """
    done: list[Change] = []
    for position, change in enumerate(changes):
        if change.action not in WRITING_ACTIONS:
            done.append(change)
            continue
        try:
            _write(client, change)
        except RequestRefused as error:
            reason = _join_lines(format_validation_issues(error.text))
            done.append(msgspec.structs.replace(change, action=Action.FAIL, reason=reason))
        except Unreachable as error:
            unwritten = [
                msgspec.structs.replace(each, action=Action.FAIL, reason="not written: the connection to Wharf broke")
                if each.action in WRITING_ACTIONS
                else each
                for each in changes[position:]
            ]
            return [*done, *unwritten], str(error)
        else:
            done.append(change)
    return done, ""


def _write(client: "SyncClient", change: Change) -> None:
    """Write one change. Raises RequestRefused, such as for a record that has changed in the meantime."""
    record = change.record
    match change.kind:
        case ImportKind.QUOTA:
            client.quotas.store(record)
        case ImportKind.NODE_POOL:
            client.node_pools.store(record)
        case ImportKind.NAMESPACE:
            client.namespaces.store(record)
        case ImportKind.SCHEDULER:
            if not client.operator.set_scheduler_configuration(record, cas=change.version).updated:
                raise Conflict(RefusalCode.CONFLICT, "they have changed in the meantime: repeat the import", 409)
        case ImportKind.POLICY:
            client.acl.policies.store(
                PolicyRequest(
                    name=record.name, description=record.description, rules=record.rules, job_acl=record.job_acl
                )
            )
        case ImportKind.ROLE:
            role = RoleRequest(name=record.name, description=record.description, policies=record.policies)
            if change.action is Action.CREATE:
                client.acl.roles.create(role)
            else:
                client.acl.roles.update(record.id, msgspec.structs.replace(role, id=record.id))
        case ImportKind.VARIABLE:
            client.variables.put(record.path, record.items, cas=change.version, namespace=record.namespace)
        case ImportKind.JOB:
            client.jobs.register(
                record.document,
                enforce_index=change.version,
                submission=record.submission,
                namespace=record.namespace,
            )


def _render_report(report: ImportReport, *, is_verbose: bool) -> str:
    """Return the table of counts, the records that need attention, and the result in one line."""
    from wharf.cli.common.rendering import render_section, render_table

    counts = Counter((record.kind, record.action) for record in report.records)
    unread = {each.kind for each in report.unread}
    rows = [
        (
            kind.value.capitalize(),
            *("?" if kind.value in unread else counts[kind.value, action.value] for action in Action),
        )
        for kind in ImportKind
    ]
    titles = ("Kind", *(action.value.capitalize() for action in Action))
    parts = [render_table(titles, rows)]
    for action, title in (
        (Action.CREATE, "To create" if report.is_plan else "Created"),
        (Action.REPLACE, "To replace" if report.is_plan else "Replaced"),
        (Action.KEEP, "Kept, because it differs from Nomad's"),
        (Action.SKIP, "Not imported"),
        (Action.FAIL, "Failed"),
    ):
        records = [record for record in report.records if record.action == action]
        if records:
            parts.append(render_section(title, _render_records(records, is_verbose=is_verbose)))
    missing = [
        *(f"{each.kind}: not read: {each.reason}" for each in report.unread),
        *(f"{each.kind}: {each.reason}" for each in report.absent),
        *(f"{each.kind} ({each.count}): {each.reason}" for each in report.not_imported),
    ]
    if missing:
        parts.append(render_section("Not copied from Nomad", "\n".join(missing)))
    return "\n".join([*parts, "", _summarize(report)])


def _render_records(records: Sequence[ImportedRecord], *, is_verbose: bool) -> str:
    shown = records if is_verbose else records[:MAX_LISTED]
    lines = [f"{each.kind}: {each.name}{f': {each.reason}' if each.reason else ''}" for each in shown]
    if len(records) > len(shown):
        lines.append(f"and {len(records) - len(shown):,} more; --verbose shows all")
    return "\n".join(lines)


def _summarize(report: ImportReport) -> str:
    counts = Counter(record.action for record in report.records)
    created, replaced = counts[Action.CREATE], counts[Action.REPLACE]
    if report.is_plan:
        return f"plan: {created} to create, {replaced} to replace; nothing was written"
    if created or replaced or counts[Action.FAIL]:
        return f"imported: {created} created, {replaced} replaced"
    return f"nothing changed: {counts[Action.SAME]} the same in Wharf"


def _raise_failures(report: ImportReport, lost_connection: str) -> None:
    """Raise CliError if a change failed or Nomad did not return a kind of record."""
    failed = sum(record.action == Action.FAIL for record in report.records)
    if lost_connection:
        raise CliError(
            f"{lost_connection}; changes that are not written: {failed}; repeat the import, which writes what is missing"
        )
    if failed:
        raise CliError(
            f"changes that Wharf refused: {failed}; correct what their reasons name, and repeat the import, which writes "
            "what is missing"
        )
    if report.unread:
        kinds = ", ".join(each.kind for each in report.unread)
        raise CliError(f"Nomad did not return {kinds}: see above, and repeat the import, which writes what is missing")
