"""The demonstration of limits: a small service, a gateway in front of it, and several callers, all in one process.

It prints its progress through `print_line`, and writes only below the given folder.
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
from wharf.world.tasks import cancel_tasks

REPORT_INTERVAL_S: Final = 5.0
"""How often the table of callers is printed."""
USER_TOKEN: Final = "ghp_ada0of0the0demonstration0000000000000"
INSTALLATION_TOKEN: Final = "ghs_bot0of0the0demonstration0000000000000"

RULES: Final = """\
# The limits of a code hosting service, small enough to be reached within a minute.
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


class _DemoCaller(msgspec.Struct):
    """A caller of the demonstration, which sends the same request again and again, with counts of the replies."""

    name: str
    description: str
    path: str
    interval_s: float
    token: str | None = None
    obeys_retry_after: bool = True
    """Whether the caller waits after a refusal as long as `retry-after` says."""
    requests: int = 0
    admitted: int = 0
    refused: int = 0
    remaining: str = "-"
    """The last value of `x-ratelimit-remaining`."""
    last_reply: str = ""
    """Status and wait of the last reply, for the table."""

    def record_reply(self, status: int, headers: dict[str, str]) -> float:
        """Count a reply. Return the seconds until the next request."""
        self.requests += 1
        self.remaining = headers.get("x-ratelimit-remaining", "-")
        if status == 200:
            self.admitted += 1
            self.last_reply = "200"
            return self.interval_s
        self.refused += 1
        wait_s = int(headers.get("retry-after", "1"))
        self.last_reply = f"{status}, retry-after {wait_s} s"
        return wait_s if self.obeys_retry_after else self.interval_s


def _make_callers() -> list[_DemoCaller]:
    """Return the callers of the demonstration."""
    issues, site, search = "/repos/acme/site/issues", "/repos/acme/site", "/search/issues?q=limits"
    return [
        _DemoCaller("ada", "a user with a token, who obeys retry-after", issues, 0.2, USER_TOKEN),
        _DemoCaller("bot", "an installation of an app, well below its limits", site, 0.3, INSTALLATION_TOKEN),
        _DemoCaller("crawler", "no credential, ignores retry-after", site, 0.4, obeys_retry_after=False),
        _DemoCaller("searcher", "the user ada, on the search, which has its own bucket", search, 0.5, USER_TOKEN),
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
    """Run the demonstration for this many seconds, or until `stop_event` is set. Raises OSError if the port is in use."""
    (folder / "rules.toml").write_text(RULES)
    (folder / "people.toml").write_text(DIRECTORY)
    (folder / "limits.toml").write_text(
        f'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n[gateway]\nlisten = "127.0.0.1:{port}"\n'
        'drain_timeout = "1s"\n'
    )
    service = await asyncio.start_server(_serve, "127.0.0.1", 0)
    upstream = read_upstream(f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}")
    limits = RateLimiter(load_settings(folder / "limits.toml"), world)
    gateway = Gateway(limits, upstream, world)
    await limits.open()
    admin = AdminServer(limits, world, gateway)
    callers = _make_callers()
    tasks: list[asyncio.Task[None]] = []
    try:
        await gateway.open()
        await admin.open()
        _print_introduction(print_line, gateway.port, folder, callers)
        tasks = [
            world.start_task(_send_requests(caller, gateway.port, folder, print_line), name=f"demo: {caller.name}")
            for caller in callers
        ]
        started_s = world.monotonic_s()
        while (left_s := started_s + seconds - world.monotonic_s()) > 0 and not stop_event.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(REPORT_INTERVAL_S, left_s)):
                    await stop_event.wait()
            print_line(_render_table(callers, round(world.monotonic_s() - started_s)))
        print_line("\nDemonstration ended. To limit a service of your own, run `wharf gateway --upstream URL`.")
    finally:
        await cancel_tasks(*tasks)
        await gateway.close()
        await admin.close()
        await limits.close()
        service.close()


def _print_introduction(
    print_line: Callable[[str], object], port: int, folder: Path, callers: Sequence[_DemoCaller]
) -> None:
    """Print what the demonstration shows, and commands to try."""
    print_line(f"A small service runs behind a gateway at http://127.0.0.1:{port}. Its callers are:\n")
    for caller in callers:
        print_line(f"  {caller.name:<9} {caller.description}")
    print_line(
        "\nTry it in another terminal:\n\n"
        f"  curl -i http://127.0.0.1:{port}/repos/acme/site\n"
        f"  curl -i -H 'Authorization: Bearer {USER_TOKEN}' http://127.0.0.1:{port}/rate_limit\n"
        f"  wharf limits top --admin-address {folder}/data/admin.sock\n"
        f"\nChange the rules in {folder}/rules.toml: they apply within a second.\n"
    )


def _render_table(callers: Sequence[_DemoCaller], second: int) -> str:
    """Return the counts of all callers as a table."""
    rows = [f"\n{f'after {second} s':<12} requests  admitted  refused  remaining  last reply"]
    rows += [
        f"  {c.name:<10} {c.requests:>8} {c.admitted:>9} {c.refused:>8} {c.remaining:>10}  {c.last_reply}"
        for c in callers
    ]
    return "\n".join(rows)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of the small service, which knows nothing about limits."""
    body = b'{"hello": "from a service that knows nothing about limits"}\n'
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
            await writer.drain()
    writer.close()


async def _send_requests(caller: _DemoCaller, port: int, folder: Path, print_line: Callable[[str], object]) -> None:
    """Send the caller's request again and again, and count the replies. Print the first refusal in full."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    credential = f"Authorization: Bearer {caller.token}\r\n" if caller.token is not None else ""
    request = f"GET {caller.path} HTTP/1.1\r\nHost: demo\r\n{credential}\r\n".encode()
    try:
        while True:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            headers = {name: value for name, _, value in (line.partition(": ") for line in lines[1:])}
            body = await reader.readexactly(int(headers["content-length"]))
            status = int(lines[0].split()[1])
            wait_s = caller.record_reply(status, headers)
            if status != 200 and caller.refused == 1:
                request_id = headers.get("x-github-request-id", "")
                print_line(f"\n{caller.name} was refused: {status} {body.decode()}")
                print_line(f"  why: wharf limits explain {request_id} --admin-address {folder}/data/admin.sock")
            await asyncio.sleep(wait_s)
    finally:
        writer.close()
