"""`wharf tls`: certificates for a cluster."""

from pathlib import Path

import click

from wharf.cli.common.errors import report_startup_errors
from wharf.cli.lazy_group import CommandEntry, LazyGroup

COMMANDS = {
    "create": CommandEntry("wharf.cli.tls", "create", "Make an authority, and a certificate for a server or a caller.")
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
    valid for server.<region>.wharf, localhost, 127.0.0.1, and what --also names, and never longer than its authority.
    No file is ever replaced; all are readable by their owner only.
    """
    with report_startup_errors():
        from wharf.agent.tls import certificates

        made = certificates.create_certificates(
            folder,
            region=region,
            is_server=not is_client,
            files_name=name,
            alternative_names=also,
            days=days,
            authority_days=authority_days,
        )
        for one in made:
            click.echo(f"{one.role:<9}  {one.certificate_file}  {one.key_file}  valid until {one.valid_until}")
        certificate_file, key_file = made[-1].certificate_file, made[-1].key_file
        ca_file, ca_key_file = certificates.get_files(folder, certificates.AUTHORITY_FILES_NAME)
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
