"""Packed maps: readers see a map, while memory and log hold bytes."""

import msgspec
import pytest

from tests.cluster.state.inventory import PARCELS, Parcel, Stop, make_batch, make_parcel, make_replica, make_write
from wharf.cluster.state import Replica
from wharf.cluster.state.codec import DamagedRecord, RecordDecoder, encode_record
from wharf.cluster.state.packed_map import PackedMap, encode_packed_as_dict, encode_packed_as_raw
from wharf.contract.model.log import Batch, Cause, CauseKind, EncodedChange

STOPS = {"first": Stop(yard="north", day=1), "last": Stop(yard="south", day=2)}


def make_stored_parcel(replica: Replica) -> Parcel:
    replica.apply_batch(make_batch(1, PARCELS.build_put(make_parcel("p", stops=STOPS))))
    stored = replica.get(PARCELS, "p")
    assert stored is not None
    return stored


def test_a_packed_map_reads_like_the_stored_map() -> None:
    stops = make_stored_parcel(make_replica()).stops

    assert isinstance(stops, PackedMap)
    assert stops["last"] == Stop(yard="south", day=2)
    assert stops.get("never") is None
    assert "first" in stops
    assert list(stops) == ["first", "last"]
    assert len(stops) == 2
    assert list(stops.items()) == list(STOPS.items())
    assert list(stops.values()) == list(STOPS.values())
    assert repr(stops) == repr(STOPS)


def test_a_packed_map_equals_the_same_map_packed_or_not() -> None:
    stops, same = make_stored_parcel(make_replica()).stops, make_stored_parcel(make_replica()).stops
    assert isinstance(stops, PackedMap)
    in_another_order = PackedMap(
        msgspec.msgpack.encode(dict(reversed(STOPS.items()))), msgspec.msgpack.Decoder(dict[str, Stop]).decode
    )

    assert stops == same
    assert stops == STOPS
    assert STOPS == stops
    assert stops == in_another_order
    assert stops != {}
    assert stops != PackedMap(msgspec.msgpack.encode({}), msgspec.msgpack.Decoder(dict[str, Stop]).decode)
    assert stops != ["first", "last"]


def test_a_record_without_the_map_has_none() -> None:
    replica = make_replica()
    replica.apply_batch(make_batch(1, PARCELS.build_put(make_parcel("p"))))

    assert (stored := replica.get(PARCELS, "p")) is not None
    assert stored.stops is None


def test_a_record_that_is_written_again_reuses_its_packed_bytes() -> None:
    replica = make_replica()
    moved = msgspec.structs.replace(make_stored_parcel(replica), yard="south")
    logged = replica.encode_write(make_write(PARCELS.build_put(moved)), write_id="w")
    replica.apply_batch(Batch(2, "w", "test", logged.cause, logged.changes))

    assert (stored := replica.get(PARCELS, "p")) is not None
    assert (stored.yard, stored.stops) == ("south", STOPS)
    assert logged.changes[0].data == encode_record(PARCELS, msgspec.structs.replace(moved, stops=STOPS))


def test_a_packed_map_is_encoded_as_json_like_any_other_map() -> None:
    stored = make_stored_parcel(make_replica())
    plain = msgspec.structs.replace(stored, stops=STOPS)

    assert msgspec.json.encode(stored, enc_hook=encode_packed_as_dict) == msgspec.json.encode(plain)


def test_an_encoder_without_the_hook_rejects_a_packed_map() -> None:
    with pytest.raises(TypeError, match="PackedMap"):
        msgspec.json.encode(make_stored_parcel(make_replica()))


@pytest.mark.parametrize("hook", [encode_packed_as_raw, encode_packed_as_dict])
def test_the_hook_rejects_other_types_by_name(hook: object) -> None:
    assert callable(hook)
    with pytest.raises(NotImplementedError, match="complex"):
        hook(1j)


DAMAGED = msgspec.msgpack.encode({"ID": "p", "CreateIndex": 1, "Stops": {"first": 7}})


def test_damaged_packed_bytes_are_reported_when_they_are_read() -> None:
    replica = make_replica()
    replica.apply_batch(Batch(1, "w", "test", Cause(CauseKind.REQUEST), [EncodedChange(PARCELS.name, "p", DAMAGED)]))
    stored = replica.get(PARCELS, "p")
    assert stored is not None
    assert stored.stops is not None

    with pytest.raises(DamagedRecord, match=r"parcels\.stops"):
        stored.stops["first"]


def test_checking_a_copy_of_the_log_decodes_packed_maps() -> None:
    with pytest.raises(DamagedRecord, match=r"parcels\.stops"):
        RecordDecoder(PARCELS, should_open_packed=True).decode_record("p", DAMAGED, 1)


def test_the_map_that_was_read_last_is_decoded_once() -> None:
    stops = make_stored_parcel(make_replica()).stops
    other = make_stored_parcel(make_replica()).stops
    assert stops is not None
    assert other is not None
    first, again = stops["first"], stops["first"]

    assert first is again
    assert other["first"] is not first
