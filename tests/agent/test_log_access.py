"""Which engine an agent uses."""

from pathlib import Path

import pytest

from wharf.agent.log_access import describe, engine_for, engine_for_command, store_folder, store_socket
from wharf.agent.refusal import Refused
from wharf.config.settings import Settings
from wharf.engines.etcd import EtcdEngine
from wharf.engines.remote import RemoteEngine
from wharf.engines.settings import EngineKind, EtcdStateSettings, EtcdTlsSettings, StateSettings
from wharf.engines.sqlite import SqliteEngine
from wharf.engines.store import StoreSettings
from wharf.model.setting import Secret
from wharf.world import RealWorld

WORLD = RealWorld()


def settings(folder: Path, engine: EngineKind = EngineKind.SQLITE, etcd: EtcdStateSettings | None = None) -> Settings:
    return Settings(data_dir=str(folder), state=StateSettings(engine=engine, etcd=etcd or EtcdStateSettings()))


def test_the_store_is_looked_for_where_it_listens(tmp_path: Path) -> None:
    chosen = settings(tmp_path)

    assert store_socket(chosen) == StoreSettings(folder=str(store_folder(chosen))).socket_path()


@pytest.mark.parametrize("engine", [EngineKind.SQLITE, EngineKind.MEMORY])
def test_processes_of_one_machine_share_the_store(tmp_path: Path, engine: EngineKind) -> None:
    assert isinstance(engine_for(settings(tmp_path, engine), WORLD), RemoteEngine)


def test_etcd_is_reached_with_all_that_is_configured(tmp_path: Path) -> None:
    etcd = EtcdStateSettings(
        endpoints=("a:1", "b:2"),
        user="u",
        password=Secret("p"),
        max_txn_ops=512,
        tls=EtcdTlsSettings(ca_file="/ca", cert_file="/c", key_file="/k"),
    )
    chosen = settings(tmp_path, EngineKind.ETCD, etcd)
    engine = engine_for(chosen, WORLD)

    assert isinstance(engine, EtcdEngine)
    assert engine.bounds.changes > 400
    assert describe(chosen) == "etcd at a:1, b:2"


def test_a_command_opens_the_file_itself_when_no_agent_runs(tmp_path: Path) -> None:
    assert isinstance(engine_for_command(settings(tmp_path), WORLD, may_be_new=False), SqliteEngine)


def test_a_command_makes_no_data_folder_by_a_slip_of_the_pen(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no data folder"):
        engine_for_command(settings(tmp_path / "gone"), WORLD, may_be_new=False)


def test_a_state_in_memory_cannot_be_reached_without_its_agent(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="the state is in the memory of an agent, and none runs here"):
        engine_for_command(settings(tmp_path, EngineKind.MEMORY), WORLD, may_be_new=True)
