"""Downloads a file over HTTP, with redirects, and with limits for bytes and time."""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import httpx2

from wharf.node.artifacts.source import Checksum
from wharf.node.fair_queue import ItemOwner
from wharf.node.threads import ThreadGroup, run_in_owned_thread
from wharf.node.unpacking.budget import CopyBudget
from wharf.node.unpacking.errors import ArtifactError
from wharf.world.http_clients import build_async_client
from wharf.world.tls_contexts import NO_VERIFICATION, SYSTEM_TRUST, load_client_context

MAX_REDIRECTS: Final = 10
"""Limit of redirects; protects against hosts that redirect forever."""
CONNECT_TIMEOUT_S: Final = 30.0


async def download_file(
    url: str,
    headers: Mapping[str, str],
    target: Path,
    *,
    checksum: Checksum | None,
    is_insecure: bool,
    idle_timeout_s: float,
    budget: CopyBudget,
    owner: ItemOwner,
) -> None:
    """Download a file to `target` and verify its checksum. Raises ArtifactError and OSError.

    `is_insecure`: TLS certificates are not verified. `idle_timeout_s`: the longest time without data. The job's headers
    are sent to the host in `url`, not to hosts that it redirects to. `owner` is the owner of the threads.
    """
    all_headers = {name.encode(): value.encode() for name, value in headers.items()}
    timeout = httpx2.Timeout(idle_timeout_s, connect=min(CONNECT_TIMEOUT_S, idle_timeout_s))
    try:
        first = current = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ArtifactError(f"the source is not a URL: {error}", is_permanent=True) from None
    try:
        context = await load_client_context(NO_VERIFICATION if is_insecure else SYSTEM_TRUST)
        async with build_async_client(verify=context, timeout=timeout, trust_env=True) as client:
            for _ in range(MAX_REDIRECTS + 1):
                sent_headers = all_headers if is_same_host(current, first) else {}
                async with client.stream("GET", current, headers=sent_headers, follow_redirects=False) as response:
                    if response.next_request is not None:
                        current = _check_redirect(current, response.next_request.url)
                        continue
                    if response.status_code != 200:
                        raise ArtifactError(f"{_redact_url(current)}: bad response code: {response.status_code}")
                    await _write_body(response, target, checksum, budget, owner)
                    return
            raise ArtifactError(f"{_redact_url(httpx2.URL(url))}: more than {MAX_REDIRECTS} redirects")
    except httpx2.TimeoutException:
        raise ArtifactError(f"{_redact_url(current)}: no data for {idle_timeout_s:g} s") from None
    except (httpx2.TransportError, httpx2.InvalidURL, httpx2.DecodingError) as error:
        raise ArtifactError(f"{_redact_url(httpx2.URL(url))}: {error or type(error).__name__}") from None


def is_same_host(first: httpx2.URL, second: httpx2.URL) -> bool:
    """Return whether both URLs name the same host and port.

    Upper case, a default port that is written out, and the two forms of an international host name make no difference.
    """
    return (first.raw_host, first.port) == (second.raw_host, second.port)


def _check_redirect(current: httpx2.URL, target: httpx2.URL) -> httpx2.URL:
    """Return the target of a redirect. Raises ArtifactError if it is not HTTP(S), or leads from HTTPS to HTTP."""
    if target.scheme not in ("http", "https") or (current.scheme == "https" and target.scheme == "http"):
        raise ArtifactError(f"{_redact_url(current)} redirects to {_redact_url(target)}, which is not secure")
    return target


async def _write_body(
    response: httpx2.Response, target_file: Path, checksum: Checksum | None, budget: CopyBudget, owner: ItemOwner
) -> None:
    """Write the body of a response to a file and verify its checksum. Raises ArtifactError and OSError."""
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) > budget.max_bytes:
        raise ArtifactError(f"the file has {int(length):,} bytes; the limit is {budget.max_bytes:,}", is_permanent=True)
    digest = checksum.new_digest() if checksum else None
    with target_file.open("wb") as file:
        # `aiter_bytes` removes a content encoding, in pieces of 1 MiB, so the checksum is that of the file itself.
        async for chunk in response.aiter_bytes():
            await run_in_owned_thread(ThreadGroup.DOWNLOADS, owner, budget.cancel, _write_chunk, file, chunk, budget)
            if digest:
                digest.update(chunk)
    if digest and checksum:
        checksum.verify(digest.hexdigest())


def _write_chunk(file: BinaryIO, chunk: bytes, budget: CopyBudget) -> None:
    """Write a part of the body. Raises ArtifactError above the budget, and OSError."""
    budget.count_bytes(len(chunk))
    file.write(chunk)


def _redact_url(url: httpx2.URL) -> str:
    """Return the URL without password and query, which may contain secrets."""
    return f"{url.scheme}://{url.host}{f':{url.port}' if url.port else ''}{url.path}"[:300]
