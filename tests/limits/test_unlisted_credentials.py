"""Unlisted credentials behind the middlewares for ASGI and WSGI applications."""

import asyncio
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.limits.decision_services import AsgiCaller
from wharf.limits.asgi import LimitsMiddleware, Receive, Scope, Send
from wharf.limits.rate_limiter import LimiterStartError, RateLimiter, load_settings
from wharf.limits.rules import InvalidFile
from wharf.limits.wsgi import Environ
from wharf.limits.wsgi import LimitsMiddleware as WsgiMiddleware
from wharf.world import RealWorld

SETTINGS = """
credentials = "opaque"
data_folder = "data"
[carriers]
headers = "X-Api-Key"
"""
KNOWN = {"authorization": "Bearer known", "x-api-key": "known-key"}


def load_limiter(folder: Path, text: str = SETTINGS) -> RateLimiter:
    (folder / "limits.toml").write_text(text)
    return RateLimiter(load_settings(folder / "limits.toml"), RealWorld())


async def application(scope: Scope, _receive: Receive, send: Send) -> None:
    """Reply with 200 to known credentials, and with 401 to all others."""
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    is_known = any(headers.get(name) == value for name, value in KNOWN.items())
    await send({"type": "http.response.start", "status": 200 if is_known else 401, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(("name", "value"), [*KNOWN.items(), ("authorization", "Bearer unknown")])
def test_an_asgi_application_proves_credentials_by_its_status(tmp_path: Path, name: str, value: str) -> None:
    async def scenario() -> list[tuple[int, str]]:
        limiter = load_limiter(tmp_path)
        middleware = LimitsMiddleware(application, limiter)
        await limiter.open()
        try:
            replies = []
            for _ in range(2):
                caller = AsgiCaller(headers=[(name, value)])
                await caller.call(middleware)
                replies.append((caller.reply.status, caller.reply.headers["x-ratelimit-limit"]))
            return replies
        finally:
            await limiter.close()

    expected = [(200, "60"), (200, "5000")] if value in KNOWN.values() else [(401, "60"), (401, "60")]
    assert asyncio.run(scenario()) == expected


@pytest.mark.parametrize("pattern", ["* /api/*", "GET /api/v1/user"])
def test_a_limiter_does_not_start_with_a_proving_path_that_repeats_the_base_path(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "rules.toml").write_text('base_path = "/api/v1"\n[[rule]]\nname = "core"\nceiling = 9\n')
    text = f'rules = "rules.toml"\n{SETTINGS}[opaque]\naccepted_on = "{pattern}"\n'

    with pytest.raises(LimiterStartError, match="begins like the base path '/api/v1': write only what follows it"):
        load_limiter(tmp_path, text)


def test_rules_whose_base_path_a_proving_path_repeats_are_refused(tmp_path: Path) -> None:
    rules = '[[rule]]\nname = "core"\nceiling = 9\n'
    (tmp_path / "rules.toml").write_text(rules)
    limiter = load_limiter(tmp_path, f'rules = "rules.toml"\n{SETTINGS}[opaque]\naccepted_on = "* /api/*"\n')

    with pytest.raises(InvalidFile, match=r"accepted_on in .* begins like the base path"):
        asyncio.run(limiter._apply_rules('base_path = "/api/v1"\n' + rules))


@pytest.mark.parametrize(("name", "value"), [*KNOWN.items(), ("authorization", "Bearer unknown")])
def test_a_wsgi_application_proves_credentials_by_its_status(tmp_path: Path, name: str, value: str) -> None:
    def wsgi_application(environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        is_known = any(environ.get(f"HTTP_{key.upper().replace('-', '_')}") == text for key, text in KNOWN.items())
        start("200 OK" if is_known else "401 Unauthorized", [])
        return [b""]

    middleware = WsgiMiddleware(wsgi_application, lambda: load_limiter(tmp_path))
    replies: list[tuple[str, str]] = []

    def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
        replies.append((status[:3], dict(headers)["x-ratelimit-limit"]))

    try:
        for _ in range(2):
            environ = {
                "REQUEST_METHOD": "GET",
                "PATH_INFO": "/things",
                "REMOTE_ADDR": "192.0.2.7",
                f"HTTP_{name.upper().replace('-', '_')}": value,
                "wsgi.input": io.BytesIO(),
            }
            parts = middleware(environ, start)
            list(parts)
            parts.close()  # type: ignore[attr-defined]
    finally:
        middleware.close()

    expected = [("200", "60"), ("200", "5000")] if value in KNOWN.values() else [("401", "60"), ("401", "60")]
    assert replies == expected


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("short", 0o600, "has 5 bytes: write at least 32"),
        ("k" * 32, 0o644, "other users can access"),
        (None, 0, "cannot be read: No such file or directory"),
    ],
)
def test_a_limiter_does_not_start_with_an_unsafe_key(
    tmp_path: Path, content: str | None, mode: int, problem: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
        (tmp_path / "key").chmod(mode)

    with pytest.raises(LimiterStartError, match=problem):
        load_limiter(tmp_path, 'credentials = "opaque"\ncredential_key_file = "key"\n')
