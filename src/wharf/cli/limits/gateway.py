"""`wharf gateway`: limits in front of a service that knows nothing of them.

`wharf limits demo`: limits at work, on this machine, within a minute.
"""

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

    from wharf.agent.logs.setup import LogConfiguration, ProcessLogging
    from wharf.limits.config import LimiterSettings
    from wharf.limits.config.settings_file import InvalidUpstream, read_upstream
    from wharf.limits.gateway.process import GatewayStartError, run_gateway
    from wharf.limits.rate_limiter import LimiterStartError, load_settings
    from wharf.world import RealWorld

    logs = ProcessLogging("gateway")
    logs.apply(LogConfiguration())
    try:
        settings = load_settings(file) if file is not None else LimiterSettings()
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
            runner.run(run_gateway(settings, service, RealWorld(), print_line=click.echo))
    except (LimiterStartError, InvalidUpstream, GatewayStartError) as refused:
        raise click.ClickException(str(refused)) from refused
    finally:
        logs.close()


@click.command
@click.option("--seconds", type=click.FloatRange(0.1, 3_600), default=60.0, show_default=True, help="How long it runs.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Where the gateway listens.  [default: any]")
def demo(seconds: float, port: int) -> None:
    """See limits at work: a small service, a gateway and some callers."""
    import signal
    import tempfile
    from pathlib import Path

    from wharf.agent.logs.setup import LogConfiguration, ProcessLogging
    from wharf.config.settings import LogLevel
    from wharf.limits.demo import run_demo
    from wharf.limits.gateway.process import explain_listen_error
    from wharf.limits.rate_limiter import LimiterStartError
    from wharf.world import RealWorld

    logs = ProcessLogging("demo")
    logs.apply(LogConfiguration(level=LogLevel.ERROR))

    async def run(folder: Path) -> None:
        until = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, until.set)
        await run_demo(folder, RealWorld(), seconds=seconds, port=port, print_line=click.echo, stop_event=until)

    with tempfile.TemporaryDirectory(prefix="wharf-limits-") as name:
        try:
            asyncio.run(run(Path(name)))
        except LimiterStartError as refused:
            raise click.ClickException(f"the demonstration cannot start: {refused}") from None
        except OSError as problem:
            raise click.ClickException(explain_listen_error(problem, "127.0.0.1", port)) from None
        finally:
            logs.close()
