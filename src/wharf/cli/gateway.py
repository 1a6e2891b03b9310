"""`wharf gateway`: limits in front of a service that knows nothing of them."""

import asyncio
from pathlib import Path

import click


@click.command
@click.option("--upstream", help="The service behind it, such as http://127.0.0.1:3000.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Where it listens.  [default: 8080, or as the file says]")
@click.option("--host", help="The address that it listens on.  [default: 127.0.0.1, or as the file says]")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file that sets it up (docs/limits.md).",
)
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Where counters and logs are kept.")
def gateway(upstream: str | None, port: int | None, host: str | None, file: Path | None, data: Path | None) -> None:
    """Put limits in front of an HTTP service.

    Without --config it has the limits of a code hosting service, counts in memory, and knows no credentials.
    """
    import msgspec
    import uvloop

    from wharf.agent.logs import LogOrder, Logs
    from wharf.limits.building import LimitsRefused, load_settings
    from wharf.limits.configuration import Settings
    from wharf.limits.configuration.reader import UpstreamRefused, read_upstream
    from wharf.limits.gateway.running import GatewayRefused, serve
    from wharf.world import RealWorld

    logs = Logs("gateway")
    logs.apply(LogOrder())
    try:
        settings = load_settings(file) if file is not None else Settings()
        told = settings.gateway
        service = told.upstream if upstream is None else read_upstream(upstream)
        if service is None:
            raise click.UsageError("say which service stands behind it: --upstream http://127.0.0.1:3000")
        told = msgspec.structs.replace(
            told, port=told.port if port is None else port, host=told.host if host is None else host
        )
        settings = msgspec.structs.replace(settings, gateway=told)
        if data is not None:
            settings = msgspec.structs.replace(settings, data_folder=data)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, service, RealWorld(), say=click.echo))
    except (LimitsRefused, UpstreamRefused, GatewayRefused) as refused:
        raise click.ClickException(str(refused)) from refused
    finally:
        logs.close()
