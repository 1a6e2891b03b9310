"""Objects of an S3-compatible store: names, content, and signatures as the published examples have them."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from tests.sinks.receivers import HttpReceiver, NamedBatch, make_line, read_ids, running_receiver
from wharf.sinks.http_sink import HttpSender
from wharf.sinks.port import RecordsRejected, SinkUnavailable
from wharf.sinks.s3_sink import S3Credentials, S3Sink, sign_request
from wharf.world import RealWorld

EXAMPLE = S3Credentials(
    access_key="AKIAIOSFODNN7EXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", region="us-east-1"
)
EXAMPLE_NS = int(datetime(2013, 5, 24, tzinfo=UTC).timestamp()) * 1_000_000_000


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "signature"),
    [
        (
            "PUT",
            "test%24file.text",
            {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            b"Welcome to Amazon S3.",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "test.txt",
            {"range": "bytes=0-9"},
            b"",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
    ],
)
def test_a_signature_equals_the_published_example(
    method: str, path: str, headers: dict[str, str], body: bytes, signature: str
) -> None:
    signed = sign_request(EXAMPLE, method, f"https://examplebucket.s3.amazonaws.com/{path}", headers, body, EXAMPLE_NS)

    assert signed["authorization"].rpartition("=")[2] == signature


def store(receiver: HttpReceiver, *lines: bytes) -> None:
    async def main() -> None:
        url = receiver.url.removesuffix("/records") + "/"
        sink = S3Sink(
            RealWorld(), HttpSender(timeout_s=5.0), url, bucket="logs", prefix="wharf/a b/", credentials=EXAMPLE
        )
        try:
            await sink.send(NamedBatch("s-1", list(lines)))
        finally:
            await sink.close()

    asyncio.run(main())


def test_a_batch_is_one_compressed_object_named_by_time_and_batch() -> None:
    with running_receiver() as receiver:
        store(receiver, make_line(1), make_line(2))

        (request,) = receiver.accepted
    assert (request.method, request.path) == ("PUT", "/logs/wharf/a%20b/2027/01/15/08/s-1.ndjson.gz")
    assert read_ids(request.body) == ["1", "2"]
    assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/")
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"


def test_a_store_that_denies_access_is_tried_again() -> None:
    denial: tuple[int, dict[str, str], bytes] = (403, {}, b"<Code>AccessDenied</Code>")

    with (
        running_receiver(lambda _request: denial) as receiver,
        pytest.raises(SinkUnavailable, match="replied 403 <Code>AccessDenied</Code>"),
    ):
        store(receiver, make_line(1))


def test_a_line_that_is_no_record_is_rejected_by_the_sink() -> None:
    with running_receiver() as receiver, pytest.raises(RecordsRejected):
        store(receiver, msgspec.json.encode({}))
