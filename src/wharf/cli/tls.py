"""`wharf tls`: creates a certificate authority, and certificates for servers, nodes and users."""

from pathlib import Path

import click

from wharf.cli.common.errors import report_startup_errors
from wharf.cli.common.sentences import print_sentence
from wharf.cli.lazy_group import CommandEntry, LazyGroup, RenamedOption

COMMANDS = {
    "create": CommandEntry(
        "wharf.cli.tls", "create", "Create a certificate authority, and a certificate for a server or a client."
    )
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def tls() -> None:
    """Create TLS certificates."""


@click.command
@click.option(
    "--output-dir",
    "folder",
    cls=RenamedOption,
    former_names=["--folder"],
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("tls"),
    show_default=True,
    help="Folder for the files.",
)
@click.option("--region", default="global", show_default=True, help="Region of the certificate.")
@click.option("--client", "is_client", is_flag=True, help="For a node or a user, which only connect to servers.")
@click.option("--name", help="Name of the files.  [default: server or client, and the region]")
@click.option(
    "--san",
    "alternative_names",
    cls=RenamedOption,
    former_names=["--also"],
    multiple=True,
    help="Subject alternative name: a further host name or address of the server; may be repeated.",
)
@click.option("--days", type=click.IntRange(1, 36_500), default=365, show_default=True, help="Validity in days.")
@click.option(
    "--ca-days",
    cls=RenamedOption,
    former_names=["--authority-days"],
    type=click.IntRange(1, 36_500),
    default=1_825,
    show_default=True,
    help="Validity of the certificate authority in days.",
)
def create(
    folder: Path,
    region: str,
    is_client: bool,
    name: str | None,
    alternative_names: tuple[str, ...],
    days: int,
    ca_days: int,
) -> None:
    """Create a certificate authority, and a certificate for a server or a client.

    The first call creates the authority; later calls with the same folder use it. A server's certificate is valid for
    server.<region>.wharf, localhost, 127.0.0.1 and the names of --san, and never longer than its authority. Existing
    files are not replaced; all files are readable by their owner only.
    """
    with report_startup_errors():
        from wharf.agent.tls import certificates

        created = certificates.create_certificates(
            folder,
            region=region,
            is_server=not is_client,
            files_name=name,
            alternative_names=alternative_names,
            days=days,
            authority_days=ca_days,
        )
        for issued in created:
            click.echo(
                f"{issued.role:<9}  {issued.certificate_file}  {issued.key_file}  valid until {issued.valid_until}"
            )
        certificate_file, key_file = created[-1].certificate_file, created[-1].key_file
        ca_file, ca_key_file = certificates.get_files(folder, certificates.AUTHORITY_FILES_NAME)
        print_sentence(f"\nDo not copy {ca_key_file} to servers: anyone who has it can create certificates.")
        if is_client:
            click.echo(
                f"To use it:\n\n  curl --cacert {ca_file} --cert {certificate_file} --key {key_file} https://..."
            )
        else:
            click.echo(
                "In the configuration of the server:\n\n  [tls]\n  http = true\n"
                f'  ca_file = "{ca_file.absolute()}"\n  cert_file = "{certificate_file.absolute()}"\n'
                f'  key_file = "{key_file.absolute()}"'
            )
