"""`wharf gateway`, a rate limiting proxy for an HTTP service, `wharf limits demo`, a demonstration of it, and
`wharf limits serve`, which answers other proxies.
"""

import asyncio
from pathlib import Path

import click

from wharf.cli.lazy_group import RenamedOption


@click.command
@click.option("--upstream", help="URL of the service, such as http://127.0.0.1:3000.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on.  [default: 8080, or that of the file]")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1, or that of the file]")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file (documentation page Rate limits in front of a service).",
)
@click.option(
    "--data-dir",
    "data",
    cls=RenamedOption,
    former_names=["--data"],
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for counters and logs.",
)
def gateway(upstream: str | None, port: int | None, host: str | None, file: Path | None, data: Path | None) -> None:
    """Run a rate limiting proxy for an HTTP service.

    Without --config it applies the limits of a code hosting service, counts in memory and knows no credentials.
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
        gateway_settings = settings.gateway
        service = gateway_settings.upstream if upstream is None else read_upstream(upstream)
        if service is None:
            raise click.UsageError("missing service: give its URL with --upstream, such as http://127.0.0.1:3000")
        gateway_settings = msgspec.structs.replace(
            gateway_settings,
            port=gateway_settings.port if port is None else port,
            host=gateway_settings.host if host is None else host,
        )
        settings = msgspec.structs.replace(settings, gateway=gateway_settings)
        if data is not None:
            settings = msgspec.structs.replace(settings, data_folder=data)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_gateway(settings, service, RealWorld(), print_line=click.echo))
    except (LimiterStartError, InvalidUpstream, GatewayStartError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        logs.close()


@click.command
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Configuration file (documentation page Limits behind your own proxy).",
)
@click.option(
    "--data-dir", "data", type=click.Path(path_type=Path, file_okay=False), help="Folder for counters and logs."
)
def serve(file: Path, data: Path | None) -> None:
    """Answer proxies such as Envoy, nginx, Traefik and Caddy.

    Envoy, Istio and Contour send descriptors by Envoy's rate limit protocol (`grpc_listen`). nginx, Traefik and Caddy send
    an HTTP request for each request of their callers (`check_listen`).
    """
    import msgspec
    import uvloop

    from wharf.agent.logs.setup import LogConfiguration, ProcessLogging
    from wharf.limits.rate_limiter import LimiterStartError, load_settings
    from wharf.limits.serving.process import ServeStartError, run_servers
    from wharf.world import RealWorld

    logs = ProcessLogging("serve")
    logs.apply(LogConfiguration())
    try:
        settings = load_settings(file)
        if data is not None:
            settings = msgspec.structs.replace(settings, data_folder=data)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_servers(settings, RealWorld(), print_line=click.echo))
    except (LimiterStartError, ServeStartError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        logs.close()


@click.command
@click.option(
    "--duration",
    "seconds",
    cls=RenamedOption,
    former_names=["--seconds"],
    type=click.FloatRange(0.1, 3_600),
    default=60.0,
    show_default=True,
    help="How long it runs, in seconds.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="Port of the gateway.  [default: any free port]"
)
def demo(seconds: float, port: int) -> None:
    """Show limits at work: a small service, a gateway and some callers."""
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
        stop_event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop_event.set)
        await run_demo(folder, RealWorld(), seconds=seconds, port=port, print_line=click.echo, stop_event=stop_event)

    with tempfile.TemporaryDirectory(prefix="wharf-limits-") as name:
        try:
            asyncio.run(run(Path(name)))
        except LimiterStartError as error:
            raise click.ClickException(f"cannot start the demonstration: {error}") from None
        except OSError as problem:
            raise click.ClickException(explain_listen_error(problem, "127.0.0.1", port)) from None
        finally:
            logs.close()
