"""The commands of `wharf operator` that ask the servers: any request, how the cluster schedules, its servers and keys."""

import sys
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.failing import Failed
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from wharf.model.scheduler_configuration import SchedulerConfiguration

HERE: Final = "wharf.cli.operating"
SCHEDULER: Final = {
    "get-config": Entry(HERE, "get_config", "Show how the cluster schedules."),
    "set-config": Entry(HERE, "set_config", "Change how the cluster schedules."),
}
KEYRING: Final = {
    "list": Entry(HERE, "list_keys", "List the keys that variables are encrypted by."),
    "rotate": Entry(HERE, "rotate", "Use a new key from now on."),
    "remove": Entry(HERE, "remove_key", "Forget a key that nothing needs any more."),
}
PREEMPTION: Final = {
    "service": "service_scheduler_enabled", "batch": "batch_scheduler_enabled", "system": "system_scheduler_enabled",
    "sysbatch": "sys_batch_scheduler_enabled",
}  # fmt: skip


@click.group(cls=LazyGroup, entries=SCHEDULER)
def scheduler() -> None:
    """Show and change how the cluster schedules."""


@click.group(cls=LazyGroup, entries=KEYRING)
def keyring() -> None:
    """Show and rotate the keys that variables are encrypted by."""


@click.command(cls=Quiet)
@click.argument("path")
@click.argument("body", required=False)
@click.option("-X", "--method", help="[default: GET; PUT where there is a body]")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME: VALUE", help="May be given several times.")
@click.option("--filter", "expression", default="", help="The same as filter= in the path.")
@click.option("-i", "--include", is_flag=True, help="The status and the headers, too, on the error output.")
def api(
    talk: Talk,
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

    from wharf.cli.records import read_text
    from wharf.client.exchange import Request

    parts = urlsplit(path)
    where = parts.path if parts.path.startswith("/v1/") else f"/v1/{parts.path.lstrip('/')}"
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = {"namespace": talk.settings.namespace, "region": talk.settings.region, "filter": expression}
    query += [(name, value) for name, value in given.items() if value and name not in dict(query)]
    sent = b""
    if body is not None:
        sent = (read_text(body.removeprefix("@")) if body == "-" or body.startswith("@") else body).encode()
    named = dict(_header(header) for header in headers)
    verb = (method or ("PUT" if body is not None else "GET")).upper()
    reply = talk.client.send(Request(verb, where, tuple(query), named, sent))
    if include:
        click.echo(f"{reply.status}", err=True)
        for name, value in sorted(reply.headers.items()):
            click.echo(f"{name}: {value}", err=True)
    if reply.status >= 300:
        said = reply.body.decode("utf-8", "replace").strip()
        raise Failed(f"{reply.status}: {said or 'there is nothing at ' + where}")
    sys.stdout.buffer.write(reply.body)
    if sys.stdout.isatty():
        click.echo()


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise Failed(f"--header {text}: expected NAME: VALUE")
    return name.strip().lower(), value.strip()


@click.command("get-config", cls=Speaking)
def get_config(talk: Talk) -> None:
    """Show how the cluster schedules.

    wharf operator scheduler get-config
    """
    one = talk.client.operator.scheduler_configuration().value.scheduler_config
    talk.show(one, lambda: _configuration_told(one))


@click.command("set-config", cls=Quiet)
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
    talk: Talk,
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

    now = talk.client.operator.scheduler_configuration().value.scheduler_config
    given = {
        "scheduler_algorithm": scheduler_algorithm,
        "memory_oversubscription_enabled": memory_oversubscription,
        "reject_job_registration": reject_job_registration,
        "pause_eval_broker": pause_eval_broker,
    }
    wanted = {
        field: preempt[f"preempt_{kind}_scheduler"]
        for kind, field in PREEMPTION.items()
        if preempt[f"preempt_{kind}_scheduler"] is not None
    }
    changed = msgspec.structs.replace(
        now,
        preemption_config=msgspec.structs.replace(now.preemption_config, **wanted),
        **{name: value for name, value in given.items() if value is not None},
    )
    cas = now.modify_index if check_index is None else check_index
    if not talk.client.operator.set_scheduler_configuration(changed, cas=cas).updated:
        raise Failed("it was changed in the meantime, and nothing was written: look at it again")
    click.echo(_configuration_told(talk.client.operator.scheduler_configuration().value.scheduler_config))


def _configuration_told(one: "SchedulerConfiguration") -> str:
    from wharf.cli.tables import pairs

    def yes(value: bool) -> str:
        return "yes" if value else "no"

    preempting = [kind for kind, field in PREEMPTION.items() if getattr(one.preemption_config, field)]
    return pairs(
        [
            ("Algorithm", one.scheduler_algorithm),
            ("Memory oversubscription", yes(one.memory_oversubscription_enabled)),
            ("Preemption by", ", ".join(preempting) or "nobody"),
            ("Registration is refused", yes(one.reject_job_registration)),
            ("Scheduling rests", yes(one.pause_eval_broker)),
            ("Modify index", one.modify_index),
        ]
    )


@click.command(cls=Speaking)
def members(talk: Talk) -> None:
    """List the servers of the region, and which of them leads.

    wharf operator members
    """
    from wharf.cli.tables import table

    records = talk.client.operator.servers().value.servers
    rows = [(one.node, one.id, one.address, "leads" if one.leader else "follows") for one in records]
    talk.show(records, lambda: table(("Name", "ID", "Address", "Part"), rows))


@click.command("list", cls=Speaking)
def list_keys(talk: Talk) -> None:
    """List the keys that variables are encrypted by.

    wharf operator keyring list
    """
    from wharf.cli.tables import table

    records = talk.client.keyring.list().value
    rows = [(talk.short(one.key_id), one.algorithm, one.state, talk.when(one.create_time)) for one in records]
    talk.show(records, lambda: table(("ID", "Algorithm", "State", "Created"), rows))


@click.command(cls=Speaking)
@click.option("--full", is_flag=True, help="Also encrypt again what is kept.")
def rotate(talk: Talk, full: bool) -> None:
    """Use a new key from now on.

    wharf operator keyring rotate --full
    """
    one = talk.client.keyring.rotate(full=full).key
    talk.show(one, lambda: f"key {one.key_id} is used from now on")


@click.command("remove", cls=Quiet)
@click.argument("key_id", metavar="KEY")
@click.option("--force", is_flag=True, help="Also if something is still encrypted by it: that is lost.")
def remove_key(talk: Talk, key_id: str, force: bool) -> None:
    """Forget a key that nothing needs any more.

    wharf operator keyring remove 1a2b3c4d
    """
    from wharf.cli.finding import the_one

    found = [one for one in talk.client.keyring.list().value if one.key_id.startswith(key_id)]
    key = the_one(
        "key",
        key_id,
        found,
        id_of=lambda one: one.key_id,
        about=lambda one: one.state,
        list_by="wharf operator keyring list",
    )
    talk.client.keyring.delete(key.key_id, force=force)
    click.echo(f"key {talk.short(key.key_id)} is forgotten")
