"""A sink that stores batches of records as objects of an S3-compatible store, one compressed file of lines for each.

A request is one PUT, signed with Signature Version 4. The name of an object contains the name of its batch, so a batch that
is sent again replaces its object.
"""

import gzip
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from wharf.sinks.http_sink import GZIP_LEVEL, HttpSender
from wharf.sinks.port import RecordsRejected, SinkBatch
from wharf.sinks.records import decode_head, format_record_time
from wharf.world import World

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICE: Final = "s3"
SAFE_SIGNS: Final = "/-_.~"
"""Signs of a path that are not escaped, as the signature requires."""


class S3Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are signed."""

    access_key: str
    secret_key: str
    region: str


def sign_request(
    credentials: S3Credentials, method: str, url: str, headers: Mapping[str, str], body: bytes, now_ns: int
) -> dict[str, str]:
    """Return the headers of a request with its signature: the given ones, and host, date, hash and authorization.

    The names of headers are in lower case. The URL has no query, and its path is escaped.
    """
    parts = urlsplit(url)
    stamp = format_record_time(now_ns)[:19].replace("-", "").replace(":", "") + "Z"
    payload_hash = hashlib.sha256(body).hexdigest()
    signed = {**headers, "host": parts.netloc, "x-amz-date": stamp, "x-amz-content-sha256": payload_hash}
    names = ";".join(sorted(signed))
    canonical_headers = "".join(f"{name}:{' '.join(signed[name].split())}\n" for name in sorted(signed))
    canonical_request = f"{method}\n{parts.path or '/'}\n\n{canonical_headers}\n{names}\n{payload_hash}"
    scope = f"{stamp[:8]}/{credentials.region}/{SERVICE}/aws4_request"
    text = f"{ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical_request.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"{credentials.access_key}/{scope}"
    return {
        **signed,
        "authorization": f"{ALGORITHM} Credential={credential},SignedHeaders={names},Signature={signature}",
    }


class S3Sink:
    """Stores batches in one bucket."""

    def __init__(
        self, world: World, sender: HttpSender, url: str, *, bucket: str, prefix: str, credentials: S3Credentials
    ) -> None:
        """`url` is the endpoint of the store, such as `https://s3.example.org`."""
        self._world = world
        self._sender = sender
        self._base_url = f"{url.rstrip('/')}/{quote(bucket, safe='-_.~')}"
        self._prefix = prefix
        self._credentials = credentials

    async def send(self, batch: SinkBatch) -> int:
        """Store one object with the records of the batch. Raises `SinkUnavailable` or `RecordsRejected`."""
        try:
            first_time = decode_head(batch.lines[0]).time
        except msgspec.DecodeError as error:
            raise RecordsRejected(f"not a record: {error}") from None
        url = f"{self._base_url}/{quote(build_object_name(self._prefix, first_time, batch.name), safe=SAFE_SIGNS)}"
        body = gzip.compress(b"".join(line + b"\n" for line in batch.lines), GZIP_LEVEL, mtime=0)
        headers = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
        signed = sign_request(self._credentials, "PUT", url, headers, body, self._world.now_ns())
        await self._sender.send("PUT", url, body, signed)
        return 0

    async def close(self) -> None:
        await self._sender.close()


def build_object_name(prefix: str, first_time: str, batch_name: str) -> str:
    """Return the name of an object: the prefix, date and hour of its first record, and the batch."""
    return f"{prefix}{first_time[:10].replace('-', '/')}/{first_time[11:13]}/{batch_name}.ndjson.gz"
