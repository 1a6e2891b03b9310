"""A write in flight is never committed after `find_write` has returned None for it."""

from collections.abc import AsyncIterator, Sequence

import pytest

from tests.cluster.engines.contract import a_write, commit, index_of, load, put, records, unchanged
from tests.cluster.engines.kind_etcd import fresh_settings, shared_server
from wharf.cluster.engines.etcd.commit import build_write_transaction
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.etcd.session import EtcdSession
from wharf.cluster.engines.port import FollowerBehind, LogPosition, StoredRecord
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("etcd")


async def test_a_write_that_arrives_after_a_search_for_it_is_rejected() -> None:
    settings = fresh_settings(shared_server())
    searching, sending = EtcdEngine(settings, RealWorld()), EtcdSession(settings, RealWorld())
    await searching.open()
    sending.client.open()
    await commit(searching, put("a"))
    await sending.read_status()
    late, punctual = a_write(put("late")), a_write(put("punctual"))
    # Without conditions, only the fence can reject it.
    late_request = build_write_transaction(sending, late, sending.epoch, sending.generation_keys)
    punctual_request = build_write_transaction(sending, punctual, sending.epoch, sending.generation_keys)

    assert (await sending.client.commit_transaction(punctual_request)).succeeded
    assert await searching.find_write(late.id, since=0) is None
    assert await searching.find_write(punctual.id, since=0) is not None
    assert not (await sending.client.commit_transaction(late_request)).succeeded
    assert ("jobs", "late") not in await records(searching)

    await searching.close()
    await sending.client.close()


async def test_engines_whose_writes_were_fenced_continue_at_once() -> None:
    settings = fresh_settings(shared_server())
    first_engine, second_engine = EtcdEngine(settings, RealWorld()), EtcdEngine(settings, RealWorld())
    await first_engine.open()
    await second_engine.open()
    index = await commit(first_engine, put("a"))
    await commit(second_engine, put("b"))
    await first_engine.find_write("never", since=0)

    await commit(second_engine, put("a", b"2"), conditions=[unchanged("a", index)])
    assert await records(first_engine) == {("jobs", "a"): b"2", ("jobs", "b"): b"data"}

    await first_engine.close()
    await second_engine.close()


async def test_a_write_is_found_after_any_number_of_later_writes() -> None:
    settings = fresh_settings(shared_server())
    engine = EtcdEngine(settings, RealWorld())
    await engine.open()
    first = a_write(put("first"))
    await engine.commit(first)
    for number in range(150):  # More than the search reads one by one.
        await commit(engine, put("a", str(number).encode()))

    assert await engine.find_write(first.id, since=0) == 1
    assert await engine.find_write("never", since=0) is None
    assert await engine.find_write(first.id, since=2) is None
    await engine.close()


async def test_a_search_may_begin_at_the_first_index_of_an_epoch_and_not_before() -> None:
    engine = EtcdEngine(fresh_settings(shared_server()), RealWorld())
    await engine.open()
    await commit(engine, put("a"))
    await engine.restore(no_records(), LogPosition(1, {}))
    _, position = await load(engine)
    write = a_write(put("b"))
    index = index_of(await engine.commit(write))

    assert await engine.find_write(write.id, since=position.epoch_since) == index
    assert await engine.find_write("never", since=position.epoch_since) is None
    with pytest.raises(FollowerBehind, match="the log began epoch 1 after index"):
        await engine.find_write("never", since=position.epoch_since - 1)
    await engine.close()


async def no_records() -> AsyncIterator[Sequence[StoredRecord]]:
    yield []
