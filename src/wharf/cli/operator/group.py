"""`wharf operator`: what those need who run the cluster. Here the archive for finding faults.

The commands of `wharf operator` that ask the servers: any request, how the cluster schedules, its servers and keys.

`wharf operator rebalance`: what would stand better on another node, and moving it there.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError, report_startup_errors
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup
from wharf.cli.operator.agent_options import agent_options, read_agent_configuration

if TYPE_CHECKING:
    from wharf.contract.model.operator.rebalancing import Rebalancing
    from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration

COMMANDS: Final = {
    "api": CommandEntry("wharf.cli.operator.group", "api", "Make any request, and print its reply."),
    "scheduler": CommandEntry("wharf.cli.operator.group", "scheduler", "Show and change how the cluster schedules."),
    "rebalance": CommandEntry(
        "wharf.cli.operator.group", "rebalance", "Move allocations of services that would stand better on another node."
    ),
    "members": CommandEntry(
        "wharf.cli.operator.group", "members", "List the servers of the region, and which of them leads."
    ),
    "keyring": CommandEntry(
        "wharf.cli.operator.group", "keyring", "Show and rotate the keys that variables are encrypted by."
    ),
    "debug": CommandEntry(
        "wharf.cli.operator.group", "debug", "Put what is needed to find a fault into one archive, without secrets."
    ),
    "snapshot": CommandEntry("wharf.cli.operator.snapshot", "snapshot", "Save, inspect and restore the whole state."),
}
RESPONSE_TIMEOUT_S: Final = 10.0


@click.group(cls=LazyGroup, entries=COMMANDS)
def operator() -> None:
    """Requests, scheduling, servers, keys, snapshots, and an archive for finding faults."""


@click.command
@agent_options
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="[default: wharf-debug-<time>.tar.gz, here]"
)
def debug(places: tuple[Path, ...], data_dir: Path | None, output: Path | None) -> None:
    """Put what is needed to find a fault into one archive, without secrets.

    Sizes of the state, configuration, logs, and where every process stands. Works beside a running agent, and, with
    less to tell, when it does not run. Look it through before you send it to someone. Without --config and --data-dir
    it is about the `wharf dev` of this folder.
    """
    with report_startup_errors():
        from wharf.agent.debug_archive import make_archive

        made = make_archive(read_agent_configuration(places, data_dir).settings, output, timeout_s=RESPONSE_TIMEOUT_S)
        if not made.is_agent_running:
            click.echo(f"No agent runs on {made.data_folder}: the archive holds no stacks.")
        if made.silent_processes:
            click.echo(f"These did not answer in time: {', '.join(made.silent_processes)}.")
        click.echo(f"{made.path}  {made.file_count} files, {made.path.stat().st_size / 1_000:.0f} KB")


MODULE: Final = "wharf.cli.operator.group"
SCHEDULER_COMMANDS: Final = {
    "get-config": CommandEntry(MODULE, "get_config", "Show how the cluster schedules."),
    "set-config": CommandEntry(MODULE, "set_config", "Change how the cluster schedules."),
}
KEYRING_COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_keys", "List the keys that variables are encrypted by."),
    "rotate": CommandEntry(MODULE, "rotate", "Use a new key from now on."),
    "remove": CommandEntry(MODULE, "remove_key", "Forget a key that nothing needs any more."),
}
PREEMPTION_FIELDS: Final = {
    "service": "service_scheduler_enabled", "batch": "batch_scheduler_enabled", "system": "system_scheduler_enabled",
    "sysbatch": "sys_batch_scheduler_enabled",
}  # fmt: skip


@click.group(cls=LazyGroup, entries=SCHEDULER_COMMANDS)
def scheduler() -> None:
    """Show and change how the cluster schedules."""


@click.group(cls=LazyGroup, entries=KEYRING_COMMANDS)
def keyring() -> None:
    """Show and rotate the keys that variables are encrypted by."""


@click.command(cls=QuietServerCommand)
@click.argument("path")
@click.argument("body", required=False)
@click.option("-X", "--method", help="[default: GET; PUT where there is a body]")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME: VALUE", help="May be given several times.")
@click.option("--filter", "expression", default="", help="The same as filter= in the path.")
@click.option("-i", "--include", is_flag=True, help="The status and the headers, too, on the error output.")
def api(
    session: Session,
    path: str,
    body: str | None,
    method: str | None,
    headers: tuple[str, ...],
    expression: str,
    include: bool,
) -> None:
    """Make any request, and print its reply.

    PATH is as in the HTTP API, with or without /v1. BODY is text, @FILE, or `-` for what is piped in.

    wharf operator api '/v1/jobs?prefix=web'
    """
    from urllib.parse import parse_qsl, urlsplit

    from wharf.cli.common.documents import read_text
    from wharf.contract.client.transport import ClientRequest

    parts = urlsplit(path)
    where = parts.path if parts.path.startswith("/v1/") else f"/v1/{parts.path.lstrip('/')}"
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = {"namespace": session.settings.namespace, "region": session.settings.region, "filter": expression}
    query += [(name, value) for name, value in given.items() if value and name not in dict(query)]
    sent = b""
    if body is not None:
        sent = (read_text(body.removeprefix("@")) if body == "-" or body.startswith("@") else body).encode()
    named = dict(_header(header) for header in headers)
    verb = (method or ("PUT" if body is not None else "GET")).upper()
    reply = session.client.send(ClientRequest(verb, where, tuple(query), named, sent))
    if include:
        click.echo(f"{reply.status}", err=True)
        for name, value in sorted(reply.headers.items()):
            click.echo(f"{name}: {value}", err=True)
    if reply.status >= 300:
        said = reply.body.decode("utf-8", "replace").strip()
        raise CliError(f"{reply.status}: {said or 'there is nothing at ' + where}")
    sys.stdout.buffer.write(reply.body)
    if sys.stdout.isatty():
        click.echo()


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise CliError(f"--header {text}: expected NAME: VALUE")
    return name.strip().lower(), value.strip()


@click.command("get-config", cls=ServerCommand)
def get_config(session: Session) -> None:
    """Show how the cluster schedules.

    wharf operator scheduler get-config
    """
    one = session.client.operator.scheduler_configuration().value.scheduler_config
    session.print_result(one, lambda: _configuration_told(one))


@click.command("set-config", cls=QuietServerCommand)
@click.option(
    "--scheduler-algorithm", type=click.Choice(["binpack", "spread"]), help="Fill nodes, or spread over them."
)
@click.option("--memory-oversubscription", type=bool, help="Whether tasks may use more memory than they reserve.")
@click.option("--reject-job-registration", type=bool, help="Whether only management may submit jobs.")
@click.option("--pause-eval-broker", type=bool, help="Whether nothing is scheduled.")
@click.option("--preempt-service-scheduler", type=bool, help="Whether services push aside lower priorities.")
@click.option("--preempt-batch-scheduler", type=bool, help="The same of batch jobs.")
@click.option("--preempt-system-scheduler", type=bool, help="The same of system jobs.")
@click.option("--preempt-sysbatch-scheduler", type=bool, help="The same of sysbatch jobs.")
@click.option("--check-index", type=click.IntRange(0), help="Only over this ModifyIndex.")
def set_config(
    session: Session,
    scheduler_algorithm: str | None,
    memory_oversubscription: bool | None,
    reject_job_registration: bool | None,
    pause_eval_broker: bool | None,
    check_index: int | None,
    **preempt: bool | None,
) -> None:
    """Change how the cluster schedules.

    What is not named stays.

    wharf operator scheduler set-config --scheduler-algorithm spread
    """
    import msgspec

    now = session.client.operator.scheduler_configuration().value.scheduler_config
    given = {
        "scheduler_algorithm": scheduler_algorithm,
        "memory_oversubscription_enabled": memory_oversubscription,
        "reject_job_registration": reject_job_registration,
        "pause_eval_broker": pause_eval_broker,
    }
    wanted = {
        field: preempt[f"preempt_{kind}_scheduler"]
        for kind, field in PREEMPTION_FIELDS.items()
        if preempt[f"preempt_{kind}_scheduler"] is not None
    }
    changed = msgspec.structs.replace(
        now,
        preemption_config=msgspec.structs.replace(now.preemption_config, **wanted),
        **{name: value for name, value in given.items() if value is not None},
    )
    cas = now.modify_index if check_index is None else check_index
    if not session.client.operator.set_scheduler_configuration(changed, cas=cas).updated:
        raise CliError("it was changed in the meantime, and nothing was written: look at it again")
    click.echo(_configuration_told(session.client.operator.scheduler_configuration().value.scheduler_config))


def _configuration_told(one: "SchedulerConfiguration") -> str:
    from wharf.cli.common.rendering import render_pairs

    def yes(value: bool) -> str:
        return "yes" if value else "no"

    preempting = [kind for kind, field in PREEMPTION_FIELDS.items() if getattr(one.preemption_config, field)]
    return render_pairs(
        [
            ("Algorithm", one.scheduler_algorithm),
            ("Memory oversubscription", yes(one.memory_oversubscription_enabled)),
            ("Preemption by", ", ".join(preempting) or "nobody"),
            ("Registration is refused", yes(one.reject_job_registration)),
            ("Scheduling rests", yes(one.pause_eval_broker)),
            ("Modify index", one.modify_index),
        ]
    )


@click.command(cls=ServerCommand)
def members(session: Session) -> None:
    """List the servers of the region, and which of them leads.

    wharf operator members
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.operator.servers().value.servers
    rows = [(one.node, one.id, one.address, "leads" if one.leader else "follows") for one in records]
    session.print_result(records, lambda: render_table(("Name", "ID", "Address", "Part"), rows))


@click.command("list", cls=ServerCommand)
def list_keys(session: Session) -> None:
    """List the keys that variables are encrypted by.

    wharf operator keyring list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.keyring.list().value
    rows = [
        (session.shorten_id(one.key_id), one.algorithm, one.state, session.format_time(one.create_time))
        for one in records
    ]
    session.print_result(records, lambda: render_table(("ID", "Algorithm", "State", "Created"), rows))


@click.command(cls=ServerCommand)
@click.option("--full", is_flag=True, help="Also encrypt again what is kept.")
def rotate(session: Session, full: bool) -> None:
    """Use a new key from now on.

    wharf operator keyring rotate --full
    """
    one = session.client.keyring.rotate(full=full).key
    session.print_result(one, lambda: f"key {one.key_id} is used from now on")


@click.command("remove", cls=QuietServerCommand)
@click.argument("key_id", metavar="KEY")
@click.option("--force", is_flag=True, help="Also if something is still encrypted by it: that is lost.")
def remove_key(session: Session, key_id: str, force: bool) -> None:
    """Forget a key that nothing needs any more.

    wharf operator keyring remove 1a2b3c4d
    """
    from wharf.cli.common.lookup import require_single

    found = [one for one in session.client.keyring.list().value if one.key_id.startswith(key_id)]
    key = require_single(
        "key",
        key_id,
        found,
        get_id=lambda one: one.key_id,
        describe=lambda one: one.state,
        list_command="wharf operator keyring list",
    )
    session.client.keyring.delete(key.key_id, force=force)
    click.echo(f"key {session.shorten_id(key.key_id)} is forgotten")


@click.command(cls=ServerCommand)
@click.option("--plan", is_flag=True, help="Only say which allocations would move and what is gained.")
def rebalance(session: Session, plan: bool) -> None:
    """Move allocations of services that would stand better on another node.

    As many of each group at a time as its migrate block allows. What is held back goes when the command is run again.

    wharf operator rebalance --plan
    """
    told = session.client.operator.rebalance(plan=plan)
    session.print_result(told, lambda: render_rebalancing(told, is_plan=plan))


def render_rebalancing(rebalancing: "Rebalancing", *, is_plan: bool) -> str:
    """One sentence first, the table after."""
    from wharf.cli.common.rendering import render_table

    text = rebalancing.text[:1].upper() + rebalancing.text[1:] + "."
    if not rebalancing.moves:
        return text
    if not is_plan:
        held = len(rebalancing.moves) - rebalancing.moving
        text += f"\n{rebalancing.moving} moves are begun now" + (
            f", {held} are held back by migrate limits." if held else "."
        )
    rows = [
        (each.name, each.from_node, each.to_node, f"{each.score_before:.2f}", f"{each.score_after:.2f}")
        for each in rebalancing.moves
    ]
    return f"{text}\n\n{render_table(('Allocation', 'From', 'To', 'Score', 'Score there'), rows)}"
