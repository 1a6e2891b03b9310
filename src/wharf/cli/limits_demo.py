"""`wharf limits demo`: limits at work, on this machine, within a minute."""

import asyncio

import click


@click.command
@click.option("--seconds", type=click.FloatRange(0.1, 3_600), default=60.0, show_default=True, help="How long it runs.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Where the gateway listens.  [default: any]")
def demo(seconds: float, port: int) -> None:
    """See limits at work: a small service, a gateway and some callers."""
    import signal
    import tempfile
    from pathlib import Path

    from wharf.agent.logs import LogOrder, Logs
    from wharf.config.settings import LogLevel
    from wharf.limits.building import LimitsRefused
    from wharf.limits.demo import demonstrate
    from wharf.limits.gateway.running import why_not_listening
    from wharf.world import RealWorld

    logs = Logs("demo")
    logs.apply(LogOrder(level=LogLevel.ERROR))

    async def run(folder: Path) -> None:
        until = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, until.set)
        await demonstrate(folder, RealWorld(), seconds=seconds, port=port, say=click.echo, until=until)

    with tempfile.TemporaryDirectory(prefix="wharf-limits-") as name:
        try:
            asyncio.run(run(Path(name)))
        except LimitsRefused as refused:
            raise click.ClickException(f"the demonstration cannot start: {refused}") from None
        except OSError as problem:
            raise click.ClickException(why_not_listening(problem, "127.0.0.1", port)) from None
        finally:
            logs.close()
