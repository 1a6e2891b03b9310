"""The cache of responses for conditional requests."""

import pytest

from wharf.limits.client.response_cache import (
    MAX_CACHED_BODY_BYTES,
    CachedResponse,
    CacheKey,
    ResponseCache,
    can_use_cache,
    is_cacheable,
    select_limit_headers,
)


def make_key(name: str) -> CacheKey:
    return CacheKey("account", name, ())


def make_response(length: int) -> CachedResponse:
    return CachedResponse('"v1"', 200, [], b"x" * length)


def list_stored(cache: ResponseCache, names: str) -> str:
    return "".join(name for name in names if cache.find(make_key(name)) is not None)


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("GET", {"accept": "x"}, True),
        ("HEAD", {}, False),
        ("POST", {}, False),
        (None, {}, False),
        ("GET", {"range": "x"}, False),
        ("GET", {"if-none-match": "x"}, False),
        ("GET", {"if-modified-since": "x"}, False),
    ],
)
def test_only_a_whole_unconditional_get_uses_the_cache(
    method: str | None, headers: dict[str, str], expected: bool
) -> None:
    assert can_use_cache(method, headers) is expected


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {"etag": "x"}, True),
        (200, {"etag": "x", "cache-control": "private, max-age=60"}, True),
        (200, {"etag": "x", "cache-control": "private, no-store"}, False),
        (200, {}, False),
        (201, {"etag": "x"}, False),
        (304, {"etag": "x"}, False),
    ],
)
def test_only_a_complete_response_with_a_tag_is_cached(status: int, headers: dict[str, str], expected: bool) -> None:
    assert is_cacheable(status, headers) is expected


def test_only_limit_headers_of_a_304_replace_those_of_the_cached_response() -> None:
    headers = [("X-RateLimit-Used", "1"), ("x-ratelimit-limit", "2"), ("date", "x"), ("other-x-ratelimit-", "3")]

    assert select_limit_headers(headers) == {"X-RateLimit-Used": "1", "x-ratelimit-limit": "2"}


def test_the_least_recently_used_responses_are_evicted_beyond_the_maximum_size() -> None:
    cache = ResponseCache(max_bytes=10)
    for name in "abc":
        cache.store(make_key(name), make_response(3))
    cache.find(make_key("a"))

    cache.store(make_key("d"), make_response(1))
    assert list_stored(cache, "bcad") == "bcad"  # 10 bytes fit exactly.
    cache.store(make_key("e"), make_response(4))

    assert list_stored(cache, "abcde") == "ade"


def test_a_response_that_is_stored_again_replaces_the_previous_one() -> None:
    cache = ResponseCache(max_bytes=10)
    cache.store(make_key("a"), make_response(4))

    for _ in range(5):
        cache.store(make_key("b"), make_response(6))

    assert list_stored(cache, "ab") == "ab"
    cache.store(make_key("b"), make_response(5))
    assert cache.find(make_key("b")) == make_response(5)


@pytest.mark.parametrize(("length", "is_stored"), [(MAX_CACHED_BODY_BYTES, True), (MAX_CACHED_BODY_BYTES + 1, False)])
def test_a_response_with_a_long_body_is_not_stored(length: int, is_stored: bool) -> None:
    cache = ResponseCache()

    cache.store(make_key("a"), make_response(length))

    assert (cache.find(make_key("a")) is not None) is is_stored


def test_an_unknown_key_finds_nothing() -> None:
    assert ResponseCache().find(make_key("a")) is None
