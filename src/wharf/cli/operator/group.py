"""The command group `wharf operator`: API requests, scheduler, servers, keys, rebalancing and the debug archive."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError, report_startup_errors
from wharf.cli.common.sentences import print_sentence
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.common.terminal import write_bytes
from wharf.cli.lazy_group import CommandEntry, LazyGroup, RenamedOption
from wharf.cli.operator.agent_options import agent_options, read_agent_configuration

if TYPE_CHECKING:
    from wharf.contract.model.operator.rebalancing import Rebalancing
    from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration

COMMANDS: Final = {
    "api": CommandEntry("wharf.cli.operator.group", "api", "Send an HTTP request to the API and print the reply."),
    "scheduler": CommandEntry("wharf.cli.operator.group", "scheduler", "Show and change the scheduler configuration."),
    "rebalance": CommandEntry(
        "wharf.cli.operator.group", "rebalance", "Move allocations of services to nodes with a better score."
    ),
    "members": CommandEntry("wharf.cli.operator.group", "members", "List the servers of the region, with the leader."),
    "keyring": CommandEntry("wharf.cli.operator.group", "keyring", "Show and rotate the encryption keys."),
    "debug": CommandEntry(
        "wharf.cli.operator.group", "debug", "Write an archive for troubleshooting, without secrets."
    ),
    "snapshot": CommandEntry("wharf.cli.operator.snapshot", "snapshot", "Save, inspect and restore the whole state."),
}
RESPONSE_TIMEOUT_S: Final = 10.0
"""How long each process of the agent may take to send its part of the debug archive."""


@click.group(cls=LazyGroup, entries=COMMANDS)
def operator() -> None:
    """Operate a cluster: API requests, scheduler, servers, keys, snapshots."""


@click.command
@agent_options
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="[default: wharf-debug-<time>.tar.gz]")
def debug(paths: tuple[Path, ...], data_dir: Path | None, output: Path | None) -> None:
    """Write an archive for troubleshooting, without secrets.

    It holds sizes of the state, configuration, logs, and the stacks of all processes. It works beside a running agent
    and, with less content, without one. Review it before you send it to someone. Without --config and --data-dir it is
    about the `wharf dev` of this folder.
    """
    with report_startup_errors():
        from wharf.agent.debug_archive import make_archive

        archive = make_archive(read_agent_configuration(paths, data_dir).settings, output, timeout_s=RESPONSE_TIMEOUT_S)
        if not archive.is_agent_running:
            print_sentence(f"No agent is running on {archive.data_folder}: the archive has no stacks.")
        if archive.silent_processes:
            print_sentence(f"No reply in time from: {', '.join(archive.silent_processes)}.")
        click.echo(f"{archive.path}  {archive.file_count} files, {archive.path.stat().st_size / 1_000:.0f} KB")


MODULE: Final = "wharf.cli.operator.group"
SCHEDULER_COMMANDS: Final = {
    "get-config": CommandEntry(MODULE, "get_config", "Show the scheduler configuration."),
    "set-config": CommandEntry(MODULE, "set_config", "Change the scheduler configuration."),
}
KEYRING_COMMANDS: Final = {
    "generate": CommandEntry(MODULE, "generate_key", "Print a new secret for keyring.secret of all servers."),
    "list": CommandEntry(MODULE, "list_keys", "List the encryption keys."),
    "rotate": CommandEntry(MODULE, "rotate", "Create a new key and encrypt with it from now on."),
    "remove": CommandEntry(MODULE, "remove_key", "Delete a key that is no longer needed."),
}
PREEMPTION_FIELDS: Final = {
    "service": "service_scheduler_enabled", "batch": "batch_scheduler_enabled", "system": "system_scheduler_enabled",
    "sysbatch": "sys_batch_scheduler_enabled",
}  # fmt: skip
"""Job types, with the field of the preemption configuration that enables preemption by such jobs."""

_LONE_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")


@click.group(cls=LazyGroup, entries=SCHEDULER_COMMANDS)
def scheduler() -> None:
    """Show and change the scheduler configuration."""


@click.group(cls=LazyGroup, entries=KEYRING_COMMANDS)
def keyring() -> None:
    """Show and rotate the encryption keys."""


@click.command(cls=QuietServerCommand)
@click.argument("path")
@click.argument("body", required=False)
@click.option("-X", "--method", help="HTTP method.  [default: GET; PUT with a body]")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME: VALUE", help="Header; may be repeated.")
@click.option("--filter", "expression", default="", help="The same as filter= in the path.")
@click.option("-i", "--include", is_flag=True, help="Print status and headers to standard error.")
def api(
    session: Session,
    path: str,
    body: str | None,
    method: str | None,
    headers: tuple[str, ...],
    expression: str,
    include: bool,
) -> None:
    """Send an HTTP request to the API and print the reply.

    PATH is a path of the API, with or without /v1. BODY is a text, @FILE, or `-` for standard input. If a server of
    --address does not reply or has no leader, a GET goes to the next one.

    wharf operator api '/v1/jobs?prefix=web'
    """
    from urllib.parse import parse_qsl, urlsplit

    from wharf.cli.common.documents import read_text
    from wharf.contract.client.transport import ClientRequest

    _check_path(path)
    parts = urlsplit(path)
    full_path = parts.path if parts.path.startswith("/v1/") else f"/v1/{parts.path.lstrip('/')}"
    query = parse_qsl(parts.query, keep_blank_values=True)
    options = {"namespace": session.settings.namespace, "region": session.settings.region, "filter": expression}
    query += [(name, value) for name, value in options.items() if value and name not in dict(query)]
    content = b""
    if body is not None:
        content = (read_text(body.removeprefix("@")) if body == "-" or body.startswith("@") else body).encode()
    header_values = dict(_parse_header(header) for header in headers)
    verb = (method or ("PUT" if body is not None else "GET")).upper()
    is_blocking = dict(query).get("index", "0") != "0"
    reply = session.client.send(
        ClientRequest(verb, full_path, tuple(query), header_values, content, is_long_running=is_blocking)
    )
    if include:
        click.echo(f"{reply.status}", err=True)
        for name, value in sorted(reply.headers.items()):
            click.echo(f"{name}: {value}", err=True)
    if reply.status >= 300:
        reply_text = reply.body.decode("utf-8", "replace").strip()
        raise CliError(f"{reply.status}: {reply_text or 'nothing exists at ' + full_path}")
    write_bytes(reply.body)
    if sys.stdout.isatty():
        click.echo()


def _check_path(path: str) -> None:
    """Raise CliError for a path that no HTTP request can have."""
    if not path.isprintable():
        raise CliError(f"path {path}: control characters must be percent-encoded, such as %0A for a line break")
    if _LONE_PERCENT.search(path):
        raise CliError(f"path {path}: % must be followed by two hex digits; write %25 for the character %")


def _parse_header(text: str) -> tuple[str, str]:
    """Split `NAME: VALUE`; the name in lower case. Raises CliError."""
    name, colon, value = text.partition(":")
    if not colon:
        raise CliError(f"--header {text}: expected NAME: VALUE")
    return name.strip().lower(), value.strip()


@click.command("get-config", cls=ServerCommand)
def get_config(session: Session) -> None:
    """Show the scheduler configuration.

    wharf operator scheduler get-config
    """
    configuration = session.client.operator.scheduler_configuration().value.scheduler_config
    session.print_result(configuration, lambda: _render_scheduler_configuration(configuration))


@click.command("set-config", cls=ServerCommand)
@click.option(
    "--scheduler-algorithm",
    type=click.Choice(["binpack", "spread"]),
    help="Fill nodes one by one, or spread allocations over nodes.",
)
@click.option("--memory-oversubscription", type=bool, help="Allow tasks to use more memory than they reserve.")
@click.option("--reject-job-registration", type=bool, help="Allow only management tokens to submit jobs.")
@click.option("--pause-eval-broker", type=bool, help="Pause scheduling.")
@click.option("--preempt-service-scheduler", type=bool, help="Allow service jobs to preempt lower priorities.")
@click.option("--preempt-batch-scheduler", type=bool, help="Allow batch jobs to preempt lower priorities.")
@click.option("--preempt-system-scheduler", type=bool, help="Allow system jobs to preempt lower priorities.")
@click.option("--preempt-sysbatch-scheduler", type=bool, help="Allow sysbatch jobs to preempt lower priorities.")
@click.option("--check-index", type=click.IntRange(0), help="Fail unless the configuration has this ModifyIndex.")
def set_config(
    session: Session,
    scheduler_algorithm: str | None,
    memory_oversubscription: bool | None,
    reject_job_registration: bool | None,
    pause_eval_broker: bool | None,
    check_index: int | None,
    **preempt: bool | None,
) -> None:
    """Change the scheduler configuration.

    Settings that are not given stay as they are.

    wharf operator scheduler set-config --scheduler-algorithm spread
    """
    import msgspec

    current = session.client.operator.scheduler_configuration().value.scheduler_config
    options = {
        "scheduler_algorithm": scheduler_algorithm,
        "memory_oversubscription_enabled": memory_oversubscription,
        "reject_job_registration": reject_job_registration,
        "pause_eval_broker": pause_eval_broker,
    }
    preemption_options = {
        field: preempt[f"preempt_{kind}_scheduler"]
        for kind, field in PREEMPTION_FIELDS.items()
        if preempt[f"preempt_{kind}_scheduler"] is not None
    }
    changed = msgspec.structs.replace(
        current,
        preemption_config=msgspec.structs.replace(current.preemption_config, **preemption_options),
        **{name: value for name, value in options.items() if value is not None},
    )
    cas = current.modify_index if check_index is None else check_index
    if not session.client.operator.set_scheduler_configuration(changed, cas=cas).updated:
        raise CliError("nothing was changed: the configuration was modified in the meantime. Check it and try again")
    stored = session.client.operator.scheduler_configuration().value.scheduler_config
    session.print_result(stored, lambda: _render_scheduler_configuration(stored))


def _render_scheduler_configuration(configuration: "SchedulerConfiguration") -> str:
    """Return the scheduler configuration as a list."""
    from wharf.cli.common.rendering import render_pairs

    def yes_or_no(value: bool) -> str:
        return "yes" if value else "no"

    preempting = [kind for kind, field in PREEMPTION_FIELDS.items() if getattr(configuration.preemption_config, field)]
    return render_pairs(
        [
            ("Algorithm", configuration.scheduler_algorithm),
            ("Memory oversubscription", yes_or_no(configuration.memory_oversubscription_enabled)),
            ("Preemption by", ", ".join(preempting) or "no jobs"),
            ("Job registration rejected", yes_or_no(configuration.reject_job_registration)),
            ("Scheduling paused", yes_or_no(configuration.pause_eval_broker)),
            ("Modify index", configuration.modify_index),
        ]
    )


@click.command(cls=ServerCommand)
def members(session: Session) -> None:
    """List the servers of the region, with the leader.

    wharf operator members
    """
    from wharf.cli.cluster import print_server_warning
    from wharf.cli.common.rendering import render_table

    records = session.client.operator.servers().value.servers
    rows = [(server.node, server.id, server.address, "leader" if server.leader else "follower") for server in records]
    session.print_result(records, lambda: render_table(("Name", "ID", "Address", "Role"), rows))
    print_server_warning(session)


@click.command("generate")
def generate_key() -> None:
    """Print a new secret for keyring.secret of all servers.

    The secret is the key that wraps the keyring: set it on each server of a new cluster before its first start, and keep a
    copy. Nothing is stored, and no server is needed.

    wharf operator keyring generate
    """
    from wharf.contract.model.wrapping_keys import KEY_BYTES, encode_wrapping_key
    from wharf.world import RealWorld

    click.echo(encode_wrapping_key(RealWorld().token_bytes(KEY_BYTES)))


@click.command("list", cls=ServerCommand)
def list_keys(session: Session) -> None:
    """List the encryption keys.

    wharf operator keyring list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.keyring.list().value
    rows = [
        (session.shorten_id(key.key_id), key.algorithm, key.state, session.format_time(key.create_time))
        for key in records
    ]
    session.print_result(records, lambda: render_table(("ID", "Algorithm", "State", "Created"), rows))


@click.command(cls=ServerCommand)
@click.option("--full", is_flag=True, help="Also re-encrypt all stored values with the new key.")
def rotate(session: Session, full: bool) -> None:
    """Create a new key and encrypt with it from now on.

    wharf operator keyring rotate --full
    """
    key = session.client.keyring.rotate(full=full).key
    session.print_result(key, lambda: f"key {key.key_id} is active")


@click.command("remove", cls=ServerCommand)
@click.argument("key_id", metavar="KEY")
@click.option("--force", is_flag=True, help="Also if values are still encrypted with it; these values are lost.")
def remove_key(session: Session, key_id: str, force: bool) -> None:
    """Delete a key that is no longer needed.

    wharf operator keyring remove 1a2b3c4d
    """
    from wharf.cli.common.lookup import require_single

    found = [key for key in session.client.keyring.list().value if key.key_id.startswith(key_id)]
    key = require_single(
        "key",
        key_id,
        found,
        get_id=lambda key: key.key_id,
        describe=lambda key: key.state,
        list_command="wharf operator keyring list",
    )
    session.client.keyring.delete(key.key_id, force=force)
    session.print_change(f"deleted key {session.shorten_id(key.key_id)}", KeyID=key.key_id)


@click.command(cls=ServerCommand)
@click.option(
    "--dry-run",
    "is_dry_run",
    cls=RenamedOption,
    former_names=["--plan"],
    is_flag=True,
    help="Only show which allocations would move, and their scores.",
)
def rebalance(session: Session, is_dry_run: bool) -> None:
    """Move allocations of services to nodes with a better score.

    Moves at most as many allocations of a group at a time as its migrate block allows. Run the command again to move
    the rest.

    wharf operator rebalance --dry-run
    """
    rebalancing = session.client.operator.rebalance(plan=is_dry_run)
    session.print_result(rebalancing, lambda: render_rebalancing(rebalancing, is_dry_run=is_dry_run))


def render_rebalancing(rebalancing: "Rebalancing", *, is_dry_run: bool) -> str:
    """Return the summary of a rebalancing, then a table of its moves."""
    from wharf.cli.common.rendering import render_table

    text = rebalancing.text[:1].upper() + rebalancing.text[1:] + "."
    if not rebalancing.moves:
        return text
    if not is_dry_run:
        deferred = len(rebalancing.moves) - rebalancing.moving
        text += f"\n{rebalancing.moving} moves started" + (
            f", {deferred} deferred because of migrate limits." if deferred else "."
        )
    rows = [
        (move.name, move.from_node, move.to_node, f"{move.score_before:.2f}", f"{move.score_after:.2f}")
        for move in rebalancing.moves
    ]
    return f"{text}\n\n{render_table(('Allocation', 'From', 'To', 'Score', 'New score'), rows)}"
