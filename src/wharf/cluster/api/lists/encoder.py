"""Encoding of lists: which records a caller may see, which page it requests, and which caches apply."""

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from wharf.cluster.api.held_memory import HeldMemory
from wharf.cluster.api.lists.cache import CachedList, ListCache, ListChanges
from wharf.cluster.api.lists.filters import ListFilters
from wharf.cluster.api.lists.listing import ALL_NAMESPACES, ListCacheSpec, Listing, list_records
from wharf.cluster.api.lists.pages import ListPage, RecordTest
from wharf.cluster.api.replies.encoding import (
    EncodedRecordCache,
    ListBodyCache,
    ReplyBody,
    encode_json,
    make_reply_memory,
)
from wharf.cluster.api.replies.items import (
    BATCH_BYTES,
    EncodedBatch,
    EncodeRecords,
    HeavyItem,
    ItemTooLarge,
    encode_list,
)
from wharf.cluster.api.replies.pieces import PIECE_WEIGHT, LazyList, encode_in_slices, is_heavy
from wharf.cluster.api.replies.shared import (
    EncodedRead,
    SharedReply,
    SharedReplyCache,
    build_query_key,
    build_rights_key,
)
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import RecordList
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.server import Server
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.languages.filters import Filter, iterate_record_selectors

MAX_RECORDS_CHOSEN_TOGETHER: Final = 1_000
"""`Listing.choose` selects from 1,000 records in about 2 ms. From more, it selects on a thread."""


class ListEncoder:
    """Encodes lists, and caches encoded records, pages and whole lists."""

    def __init__(self, server: Server, filters: ListFilters, shared_replies: SharedReplyCache) -> None:
        self._server = server
        self._filters = filters
        self._shared_replies = shared_replies
        self._bodies = ListBodyCache()
        self.reply_memory = make_reply_memory()
        self._encoded_records = EncodedRecordCache()
        self.cached_lists = ListCache()

    async def encode(self, shared: SharedReply, listing: Listing[Any], *, is_pretty: bool) -> EncodedRead:
        """Return the requested page of the listing, encoded. `shared`: the result that callers with the same query
        share.

        These callers wait for one encoding. It runs in a task of its own: if the caller that started it disconnects,
        the others still get the body. A short page is encoded at once, without a task.
        """
        task = shared.encoding_tasks.get(is_pretty)
        if task is not None:
            return await asyncio.shield(task)
        options, tests = shared.options, self._build_tests(listing, shared)
        record_filter = self._get_filter(shared)
        if record_filter is not None:
            tests += _build_detail_tests(shared, listing, record_filter)
        cache_spec = None
        if record_filter is None:
            cache_spec = _get_whole_list_spec(listing, options, tests, is_pretty=is_pretty)
        cached_list = None if cache_spec is None else self.cached_lists.get(cache_spec.name)
        if cached_list is not None:
            refreshing = self._refresh_cached_list(shared, listing, cached_list, cached_list.take_changes())
            return await shared.encode_once(self._server.world, refreshing, is_pretty=is_pretty)
        if listing.choose is not None:
            listing = await self._choose_records(listing, tests, record_filter, shared.request)
            tests, record_filter = [], None
        page = self._make_page(listing, tests, record_filter, shared.request, per_page=options.per_page)
        page.read_from(listing, options.next_token, is_reversed=options.is_reversed)
        if page.is_small and listing.prepare_view is None:
            return await self._encode_page(shared, listing, page, is_pretty=is_pretty)
        if cache_spec is not None:
            # Created before anything is awaited: it must get every change since the page was opened.
            new_list = CachedList(self._server.replica, cache_spec)
            encoding = self._fill_cached_list(shared, listing, page, cache_spec, new_list)
        else:
            encoding = self._encode_page(shared, listing, page, is_pretty=is_pretty)
        return await shared.encode_once(self._server.world, encoding, is_pretty=is_pretty, on_end=page.close)

    async def encode_records(self, record_list: RecordList, shared: SharedReply, *, is_pretty: bool) -> ReplyBody:
        """Return all records of a list that has no pages and no filter, encoded in slices."""
        views = LazyList(lambda: map(record_list.build_view, record_list.records))
        return await self.encode_value(views, shared, is_pretty=is_pretty)

    async def encode_value(self, value: object, shared: SharedReply, *, is_pretty: bool) -> ReplyBody:
        """Return a value as JSON, encoded in slices if it is large."""
        work = self.make_work(shared.request.caller.owner_key)
        return await encode_in_slices(value, work, HeldMemory(self.reply_memory), is_pretty=is_pretty)

    def _build_tests(self, listing: Listing[Any], shared: SharedReply) -> list[RecordTest]:
        """Return the tests that a record must pass to be listed, in the order in which they are applied.

        They are: selected by the listing, in a namespace that the caller may read, visible to the caller. The filter
        follows them, so that it takes no time for records that the caller may not see.
        """
        request, options = shared.request, shared.options
        tests: list[RecordTest] = [] if listing.is_selected is None else [listing.is_selected]
        is_everywhere = options.namespace == ALL_NAMESPACES
        if listing.get_namespace is not None and is_everywhere and not request.caller.rights.is_management:
            tests.append(request.build_namespace_test(get_namespace=listing.get_namespace))
        if listing.is_visible is not None:
            tests.append(listing.is_visible)
        return tests

    def _get_filter(self, shared: SharedReply) -> Filter | None:
        """Return the compiled filter of the request, or `None` if it has none."""
        request, options = shared.request, shared.options
        lists = request.endpoint.list_features
        assert lists is not None, f"{request.endpoint.name} returns a Listing but declares no list features"
        return self._filters.compile(options.filter, request.endpoint) if options.filter and lists.can_filter else None

    def _make_page(
        self,
        listing: Listing[Any],
        tests: list[RecordTest],
        record_filter: Filter | None,
        request: Request,
        *,
        per_page: int,
    ) -> ListPage:
        """Return an empty page of the listing."""
        limits = self._server.read_limits
        budget = limits.make_list_budget() if record_filter is None else limits.make_filter_budget()
        work = SlicedWork(self._server.world, self._server.off_loop, budget, request.caller.owner_key)
        return ListPage(
            tests,
            record_filter,
            work,
            per_page=per_page,
            make_token=listing.make_token,
            prepare_test=listing.prepare_visibility,
        )

    async def _choose_records(
        self, listing: Listing[Any], tests: list[RecordTest], record_filter: Filter | None, request: Request
    ) -> Listing[Any]:
        """Return the listing of the records that `listing.choose` selects from those that pass the tests and the filter."""
        assert listing.choose is not None
        page = self._make_page(listing, tests, record_filter, request, per_page=0)
        page.read_from(listing, "", is_reversed=False)
        await page.finish()
        choose = partial(listing.choose, page.records)
        if len(page.records) > MAX_RECORDS_CHOSEN_TOGETHER:
            work = self.make_work(request.caller.owner_key)
            work.restart()
            chosen_records = await work.run_off_loop(lambda _is_budget_over: choose())
        else:
            chosen_records = choose()
        chosen = list_records(chosen_records, index=0, watched=(), make_token=listing.make_token)
        return replace(listing, iterate=chosen.iterate, open_snapshot=None, choose=None)

    async def _encode_page(
        self, shared: SharedReply, listing: Listing[Any], page: ListPage, *, is_pretty: bool
    ) -> EncodedRead:
        """Read the rest of the page and return it encoded.

        The body of a long list is cached, for callers with the same query and rights, until the replica's data of it
        changes.
        """
        key = version = None
        if listing.cache_name and not page.is_small:
            request = shared.request
            key = (build_query_key(request), build_rights_key(request.caller, request.endpoint), is_pretty)
            version = (self._server.replica.epoch, listing.index)
            cached = self._bodies.get(key, version)
            if cached is not None:
                encoded = EncodedRead(listing.index, cached[0], next_token=cached[1])
                return self._shared_replies.store_encoded(shared, encoded, is_pretty=is_pretty)
        await page.finish()
        records, next_token = page.records, page.next_token
        if listing.prepare_view is not None:
            work = self.make_work(shared.request.caller.owner_key)
            listing = replace(listing, build_view=await listing.prepare_view(records, work))
        if listing.build_reply is not None:
            work = self.make_work(shared.request.caller.owner_key)
            body = await self.encode_value(await listing.build_reply(records, work), shared, is_pretty=is_pretty)
        else:
            encode, held = self._build_encoder(listing, is_pretty=is_pretty), HeldMemory(self.reply_memory)
            body = await encode_list(
                records, encode, self.make_work(shared.request.caller.owner_key), held, is_pretty=is_pretty
            )
        if key is not None:
            self._bodies.put(key, version, body, next_token)
        return self._shared_replies.store_encoded(
            shared, EncodedRead(listing.index, body, next_token=next_token), is_pretty=is_pretty
        )

    async def _fill_cached_list(
        self,
        shared: SharedReply,
        listing: Listing[Any],
        page: ListPage,
        cache_spec: ListCacheSpec,
        cached_list: CachedList,
    ) -> EncodedRead:
        """Encode a whole list, store it in the cache for later requests, and return its body."""
        try:
            await page.finish()
            encode_records = self._build_encoder(listing, uses_record_cache=False)
            body = await cached_list.fill(page.records, encode_records, self.make_work(shared.request.caller.owner_key))
        except BaseException:
            cached_list.close()
            raise
        self.cached_lists.put(cache_spec.name, cached_list)
        return self._shared_replies.store_encoded(shared, EncodedRead(listing.index, body), is_pretty=False)

    async def _refresh_cached_list(
        self, shared: SharedReply, listing: Listing[Any], cached_list: CachedList, changes: ListChanges
    ) -> EncodedRead:
        """Encode the changed records of a cached list again, and return its current body."""
        encode_records = self._build_encoder(listing, uses_record_cache=False)
        try:
            body = await cached_list.refresh(changes, encode_records, self.make_work(shared.request.caller.owner_key))
        except ItemTooLarge:  # The list is closed now. Later requests encode it without the cache.
            page = self._make_page(listing, self._build_tests(listing, shared), None, shared.request, per_page=0)
            page.read_from(listing, "", is_reversed=False)
            return await self._encode_page(shared, listing, page, is_pretty=False)
        return self._shared_replies.store_encoded(shared, EncodedRead(listing.index, body), is_pretty=False)

    def make_work(self, owner: Hashable) -> SlicedWork:
        """Return the work of building and encoding a reply. `owner`: the caller whose work it is."""
        return self._server.make_list_work(owner)

    def _build_encoder(
        self, listing: Listing[Any], *, is_pretty: bool = False, uses_record_cache: bool = True
    ) -> EncodeRecords:
        """Return the function that encodes records of the listing.

        If the listing has a cache name, encodings are read from the cache of encoded records. New encodings are stored
        there only with `uses_record_cache`: a `CachedList` stores its own. The caller indents small items if `is_pretty` is
        set. Heavy ones are encoded with their layout, which the cache does not store.
        """
        cache_name, cache = listing.cache_name, self._encoded_records
        build_view, get_dependency, large_records = listing.build_view, listing.get_dependency, listing.large_records

        def encode_records(records: Sequence[Any]) -> EncodedBatch:
            dependencies = [None] * len(records) if get_dependency is None else list(map(get_dependency, records))
            cached = cache.get_all(cache_name, records, dependencies) if cache_name else [None] * len(records)
            encoded: list[bytes] = []
            size = 0
            # One loop without further functions: it runs for each record of all lists.
            for record, dependency, data in zip(records, dependencies, cached, strict=True):
                if data is None or (is_pretty and len(data) > PIECE_WEIGHT):
                    view = build_view(record)
                    if (large_records is None or (large_records and id(record) in large_records)) and is_heavy(view):
                        store = None
                        if cache_name and uses_record_cache and not is_pretty:
                            store = partial(cache.put, cache_name, record, dependency)
                        return encoded, HeavyItem(view, is_pretty=is_pretty, store=store)
                    data = encode_json(view)
                    if cache_name and uses_record_cache:
                        cache.put(cache_name, record, dependency, data)
                encoded.append(data)
                size += len(data)
                if size > BATCH_BYTES:
                    break
            return encoded, None

        return encode_records


def _get_whole_list_spec(
    listing: Listing[Any], options: QueryOptions, tests: Sequence[RecordTest], *, is_pretty: bool
) -> ListCacheSpec | None:  # fmt: skip
    """Return how to cache the whole list, or `None` if the request selects a part of it or indented JSON."""
    if is_pretty or options.per_page or options.next_token or options.is_reversed:
        return None
    cacheable_tests = [] if listing.is_selected is None else [listing.is_selected]
    return listing.cache_spec if list(tests) == cacheable_tests else None


def _build_detail_tests(shared: SharedReply, listing: Listing[Any], record_filter: Filter) -> list[RecordTest]:
    """Return the test that leaves out records of namespaces in which the caller may not use the fields of the filter.

    Raises `Refusal` if the request names one such namespace. The reply depends on the filter and the rights only: if it
    depended on hidden fields of records, a caller could find out their values with many filters.
    """
    request, lists = shared.request, shared.request.endpoint.list_features
    if lists is None or lists.detail_need is None or request.caller.rights.is_management:
        return []
    hidden = [each for each in iterate_record_selectors(record_filter.tree) if not lists.is_shown(each.parts)]
    if not hidden:
        return []
    namespace = shared.options.namespace
    if namespace != ALL_NAMESPACES and not request.has_permission(lists.detail_need, namespace=namespace):
        shown = ", ".join(sorted(lists.shown_fields))
        raise Refusal(
            RefusalCode.FORBIDDEN,
            f"Permission denied: the filter reads {cut_echo(hidden[0].parts[0])}, which this list does not show; that needs "
            f'the capability read-job in namespace "{cut_echo(namespace)}". Without it, filter by {shown}',
        )
    get_namespace = listing.get_detail_namespace or listing.get_namespace
    assert get_namespace is not None, f"{request.endpoint.name} does not say in which namespace a record is"
    return [request.build_namespace_test(lists.detail_need, get_namespace=get_namespace)]
