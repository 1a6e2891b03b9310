"""`wharf tls`: certificates for a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from wharf.cli.failing import plainly
from wharf.cli.lazy import Entry, LazyGroup

if TYPE_CHECKING:
    from wharf.agent.certificates import Pair

COMMANDS = {
    "create": Entry("wharf.cli.tls", "create", "Make an authority, and a certificate for a server or a caller.")
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def tls() -> None:
    """Make certificates."""


@click.command
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), default=Path("tls"), show_default=True)
@click.option("--region", default="global", show_default=True, help="The region that the certificate is for.")
@click.option("--client", "is_client", is_flag=True, help="For a node or a person, who only call.")
@click.option("--name", help="What its files are called.  [default: server or client, and the region]")
@click.option("--also", multiple=True, help="A further host name or address of the server. May be given several times.")
@click.option("--days", type=click.IntRange(1, 36_500), default=365, show_default=True, help="How long it is valid.")
@click.option(
    "--authority-days",
    type=click.IntRange(1, 36_500),
    default=1_825,
    show_default=True,
    help="The same of the authority.",
)
def create(
    folder: Path,
    region: str,
    is_client: bool,
    name: str | None,
    also: tuple[str, ...],
    days: int,
    authority_days: int,
) -> None:
    """Make an authority, and a certificate for a server or a caller.

    The authority is made by the first call and used again by later ones on the same folder. A server's certificate is
    valid for server.<region>.wharf, localhost, 127.0.0.1, and what --also names. No file is ever replaced; all are
    readable by their owner only.
    """
    with plainly():
        from wharf.agent import certificates
        from wharf.agent.refusal import Refused
        from wharf.world import RealWorld

        now_ns = RealWorld().now_ns()
        files_name = name or f"{'client' if is_client else 'server'}-{region}"
        for file in certificates.files_of(folder, files_name):
            if file.exists():
                raise Refused(f"{file} is there already and is not replaced: choose another --name or --folder")
        authority = certificates.read_authority(folder)
        if authority is None:
            authority = certificates.make_authority(now_ns=now_ns, days=authority_days)
            _say("authority", *certificates.write_pair(folder, certificates.AUTHORITY, authority), authority)
        pair = certificates.make_certificate(
            authority,
            name=f"{'client' if is_client else 'server'}.{region}.wharf",
            also=also if is_client else ("localhost", "127.0.0.1", *also),
            is_server=not is_client,
            now_ns=now_ns,
            days=days,
        )
        certificate_file, key_file = certificates.write_pair(folder, files_name, pair)
        _say("client" if is_client else "server", certificate_file, key_file, pair)
        ca_file, ca_key_file = certificates.files_of(folder, certificates.AUTHORITY)
        click.echo(f"\nKeep {ca_key_file} away from servers: whoever has it can make certificates.")
        if is_client:
            click.echo(
                f"Call with it:\n\n  curl --cacert {ca_file} --cert {certificate_file} --key {key_file} https://..."
            )
        else:
            click.echo(
                "In the configuration of the server:\n\n  [tls]\n  http = true\n"
                f'  ca_file = "{ca_file.absolute()}"\n  cert_file = "{certificate_file.absolute()}"\n'
                f'  key_file = "{key_file.absolute()}"'
            )


def _say(what: str, certificate_file: Path, key_file: Path, pair: "Pair") -> None:
    until = pair.certificate.not_valid_after_utc.strftime("%Y-%m-%d")
    click.echo(f"{what:<9}  {certificate_file}  {key_file}  valid until {until}")
