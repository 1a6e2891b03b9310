"""Downloads a file over HTTP, with redirects, and with limits for bytes and time."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2

from wharf.node.artifacts.errors import ArtifactError
from wharf.node.artifacts.source import Checksum

MAX_REDIRECTS: Final = 10
CONNECT_TIMEOUT_S: Final = 30.0


async def download_file(
    address: str,
    headers: Mapping[str, str],
    into: Path,
    *,
    checksum: Checksum | None,
    is_insecure: bool,
    max_bytes: int,
    idle_timeout_s: float,
) -> None:
    """Download a file. Raises ArtifactError and OSError.

    The job's headers are sent to the host in its URL, not to hosts that it redirects to.
    """
    timeout = httpx2.Timeout(idle_timeout_s, connect=min(CONNECT_TIMEOUT_S, idle_timeout_s))
    try:
        async with httpx2.AsyncClient(verify=not is_insecure, timeout=timeout, trust_env=True) as client:
            first, current = urlsplit(address).netloc, httpx2.URL(address)
            for _ in range(MAX_REDIRECTS + 1):
                sent = dict(headers) if current.netloc.decode() == first.rpartition("@")[2] else {}
                async with client.stream("GET", current, headers=sent, follow_redirects=False) as answer:
                    if answer.next_request is not None:
                        current = _next(current, answer.next_request.url)
                        continue
                    if answer.status_code != 200:
                        raise ArtifactError(f"{_shown(current)}: bad response code: {answer.status_code}")
                    await _write(answer, into, checksum, max_bytes)
                    return
            raise ArtifactError(f"{_shown(httpx2.URL(address))}: more than {MAX_REDIRECTS} redirects")
    except httpx2.TimeoutException:
        raise ArtifactError(f"{_shown(current)}: nothing came for {idle_timeout_s:g} s") from None
    except (httpx2.TransportError, httpx2.InvalidURL, httpx2.DecodingError) as error:
        raise ArtifactError(f"{_shown(httpx2.URL(address))}: {error or type(error).__name__}") from None


def _next(current: httpx2.URL, wanted: httpx2.URL) -> httpx2.URL:
    if wanted.scheme not in ("http", "https") or (current.scheme == "https" and wanted.scheme == "http"):
        raise ArtifactError(f"{_shown(current)} sends us to {_shown(wanted)}: from https to there nobody is sent")
    return wanted


async def _write(answer: httpx2.Response, into: Path, checksum: Checksum | None, bytes_max: int) -> None:
    said = answer.headers.get("content-length", "")
    if said.isdecimal() and int(said) > bytes_max:
        raise ArtifactError(f"it has {int(said):,} bytes, and at most {bytes_max:,} are fetched", is_permanent=True)
    digest = checksum.new_digest() if checksum else None
    count = 0
    with into.open("wb") as file:
        # As it is, not as a host may have encoded it for the way: `aiter_bytes` takes that off.
        async for piece in answer.aiter_bytes():
            count += len(piece)
            if count > bytes_max:
                raise ArtifactError(f"it has more than {bytes_max:,} bytes", is_permanent=True)
            await asyncio.to_thread(file.write, piece)
            if digest:
                digest.update(piece)
    if digest and checksum and digest.hexdigest() != checksum.value:
        raise ArtifactError(
            f"its {checksum.kind} is {digest.hexdigest()}, and should be {checksum.value}: it is not what was meant"
        )


def _shown(url: httpx2.URL) -> str:
    """Return the URL without password and query, which may contain secrets."""
    return f"{url.scheme}://{url.host}{f':{url.port}' if url.port else ''}{url.path}"[:300]
