"""A small service, a gateway in front of it, and callers of several kinds: limits at work, in one process, for a minute.

What it shows it tells to whoever asked for the demonstration, line by line. It leaves nothing behind.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from wharf.limits.admin.server import AdminServer
from wharf.limits.config.settings_file import read_upstream
from wharf.limits.core.callers.credentials import hash_secret
from wharf.limits.gateway.gateway import Gateway
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.world import World

REPORT_INTERVAL_S: Final = 5.0
USER_TOKEN: Final = "ghp_ada0of0the0demonstration0000000000000"
INSTALLATION_TOKEN: Final = "ghs_bot0of0the0demonstration0000000000000"

RULES: Final = """\
# A code host's limits, made small enough to be met within a minute.
profile = "code-host"

[[rule]]
name = "core"
window = "20s"
ceiling = { none = 10, user = 60, installation = 200, client = 100, workflow = 50 }

[[rule]]
name = "search"
window = "10s"
ceiling = { credential = 10, none = 5 }
"""
DIRECTORY: Final = f"""\
[[user]]
login = "ada"
id = 5
tokens = [{{ name = "laptop", sha256 = "{hash_secret(USER_TOKEN)}" }}]

[[organization]]
login = "acme"
members = ["ada"]

[[app]]
id = 7
owner = "acme"
installations = [{{ id = 71, on = "acme", tokens = [{{ sha256 = "{hash_secret(INSTALLATION_TOKEN)}" }}] }}]
"""


class _Asker(msgspec.Struct):
    """Someone who asks again and again, and what came of it."""

    name: str
    about: str
    path: str
    every_s: float
    token: str | None = None
    waits: bool = True
    """Whether they wait as they are told."""
    asked: int = 0
    admitted: int = 0
    refused: int = 0
    remaining: str = "-"
    last: str = ""


def _askers() -> list[_Asker]:
    return [
        _Asker("ada", "a user with a token, who waits when told to", "/repos/acme/site/issues", 0.2, USER_TOKEN),
        _Asker("bot", "an installation of an app, well within its limits", "/repos/acme/site", 0.3, INSTALLATION_TOKEN),
        _Asker("crawler", "nobody in particular, who goes on while limited", "/repos/acme/site", 0.4, waits=False),
        _Asker("searcher", "ada too, at a search with a bucket of its own", "/search/issues?q=limits", 0.5, USER_TOKEN),
    ]


async def run_demo(
    folder: Path,
    world: World,
    *,
    seconds: float,
    port: int,
    print_line: Callable[[str], object],
    stop_event: asyncio.Event,
) -> None:
    """Show limits at work until the time is over or the event says so."""
    (folder / "rules.toml").write_text(RULES)
    (folder / "people.toml").write_text(DIRECTORY)
    (folder / "limits.toml").write_text(
        f'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n[gateway]\nlisten = "127.0.0.1:{port}"\n'
        'drain_timeout = "1s"\n'
    )
    service = await asyncio.start_server(_serve, "127.0.0.1", 0)
    upstream = read_upstream(f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}")
    limits = RateLimiter(load_settings(folder / "limits.toml"), world)
    await limits.open()
    gateway = Gateway(limits, upstream, world)
    admin = AdminServer(limits, world, gateway)
    askers = _askers()
    tasks: list[asyncio.Task[None]] = []
    try:
        await gateway.open()
        await admin.open()
        _say_beginning(print_line, gateway.port, folder, askers)
        tasks = [
            world.start_task(_ask(asker, gateway.port, print_line), name=f"demo: {asker.name}") for asker in askers
        ]
        begun_s = world.monotonic_s()
        while (left_s := begun_s + seconds - world.monotonic_s()) > 0 and not stop_event.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop_event.wait(), min(REPORT_INTERVAL_S, left_s))
            print_line(_table(askers, round(world.monotonic_s() - begun_s)))
        print_line("\nThat was all. `wharf gateway --upstream URL` does this in front of a service of yours.")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await gateway.close()
        await admin.close()
        await limits.close()
        service.close()


def _say_beginning(say: Callable[[str], object], port: int, folder: Path, askers: Sequence[_Asker]) -> None:
    say(f"A small service is behind a gateway at http://127.0.0.1:{port}. These ask it:\n")
    for asker in askers:
        say(f"  {asker.name:<9} {asker.about}")
    say(
        "\nTry it yourself meanwhile, in another terminal:\n\n"
        f"  curl -i http://127.0.0.1:{port}/repos/acme/site\n"
        f"  curl -i -H 'Authorization: Bearer {USER_TOKEN}' http://127.0.0.1:{port}/rate_limit\n"
        f"  wharf limits top --socket {folder}/data/admin.sock\n"
        f"\nThe rules are in {folder}/rules.toml: change them, and they are in force within a second.\n"
    )


def _table(askers: Sequence[_Asker], second: int) -> str:
    rows = [f"\nafter {second} s   asked  admitted  refused  remaining  last answer"]
    rows += [f"  {a.name:<10} {a.asked:>6} {a.admitted:>9} {a.refused:>8} {a.remaining:>10}  {a.last}" for a in askers]
    return "\n".join(rows)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The service: it knows nothing of limits."""
    body = b'{"hello": "from a service that knows nothing of limits"}\n'
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
            await writer.drain()
    writer.close()


async def _ask(asker: _Asker, port: int, say: Callable[[str], object]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    who = f"Authorization: Bearer {asker.token}\r\n" if asker.token is not None else ""
    request = f"GET {asker.path} HTTP/1.1\r\nHost: demo\r\n{who}\r\n".encode()
    try:
        while True:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            headers = {name: value for name, _, value in (line.partition(": ") for line in lines[1:])}
            body = await reader.readexactly(int(headers["content-length"]))
            status = int(lines[0].split()[1])
            await asyncio.sleep(_note(asker, status, headers, body, say))
    finally:
        writer.close()


def _note(asker: _Asker, status: int, headers: dict[str, str], body: bytes, say: Callable[[str], object]) -> float:
    """Keep what was answered, tell the first refusal in full, and say how long this caller waits now."""
    asker.asked += 1
    asker.remaining = headers.get("x-ratelimit-remaining", "-")
    if status == 200:
        asker.admitted += 1
        asker.last = "200"
        return asker.every_s
    asker.refused += 1
    wait_s = int(headers.get("retry-after", "1"))
    asker.last = f"{status}, retry-after {wait_s} s"
    if asker.refused == 1:
        say(f"\n{asker.name} is refused: {status} {body.decode()}")
        say(f"  why: wharf limits why {headers.get('x-github-request-id', '')} --socket <as above>")
    return wait_s if asker.waits else asker.every_s
