"""Cluster configuration: replaced as a whole, with expected versions and validation errors."""

import pytest

from tests.kit.state import AState
from wharf.cluster.operations.operator import configuration
from wharf.cluster.operations.operator.configuration import ConfigurationWriteResult
from wharf.cluster.state.tables import SCHEDULER_CONFIGURATION
from wharf.contract.model.cluster import make_default_scheduler_configuration
from wharf.contract.model.operator.autopilot import DEFAULT_AUTOPILOT_CONFIGURATION, AutopilotConfiguration
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration
from wharf.contract.model.refusal import Refusal, RefusalCode

SPREAD = SchedulerConfiguration(scheduler_algorithm="spread", create_index=99, modify_index=99)


def get_stored(state: AState) -> SchedulerConfiguration:
    found = state.replica.get(SCHEDULER_CONFIGURATION)
    assert found is not None, "a founded cluster has one"
    return found


def test_a_new_cluster_uses_binpack_and_preempts_for_system_jobs() -> None:
    found = get_stored(AState())

    assert (found.scheduler_algorithm, found.preemption_config) == (
        "binpack",
        PreemptionConfig(system_scheduler_enabled=True),
    )


def test_a_stored_configuration_replaces_the_previous_one_as_a_whole() -> None:
    state = AState()

    written = state.do(configuration.set_scheduler_configuration(state.replica, SPREAD))

    assert written == ConfigurationWriteResult(state.replica.index, True)
    assert (get_stored(state).scheduler_algorithm, get_stored(state).preemption_config) == (
        "spread",
        PreemptionConfig(),
    )


def test_indexes_of_a_configuration_cannot_be_submitted() -> None:
    state = AState()
    created = get_stored(state).create_index

    state.do(configuration.set_scheduler_configuration(state.replica, SPREAD))

    assert (get_stored(state).create_index, get_stored(state).modify_index) == (created, state.replica.index)


def test_a_configuration_with_the_expected_version_is_replaced() -> None:
    state = AState()
    version = get_stored(state).modify_index

    written = state.do(configuration.set_scheduler_configuration(state.replica, SPREAD, expected_version=version))

    assert (written.is_updated, get_stored(state).scheduler_algorithm) == (True, "spread")


@pytest.mark.parametrize("expected", [0, 7])
def test_a_configuration_with_another_version_is_not_replaced(expected: int) -> None:
    state = AState()
    before = (state.replica.index, get_stored(state))

    written = state.do(configuration.set_scheduler_configuration(state.replica, SPREAD, expected_version=expected))

    assert written == ConfigurationWriteResult(before[0], False)
    assert (state.replica.index, get_stored(state)) == before


def test_an_unknown_algorithm_is_refused_and_changes_nothing() -> None:
    state = AState()
    before = (state.replica.index, get_stored(state))

    with pytest.raises(Refusal) as caught:
        configuration.set_scheduler_configuration(state.replica, SchedulerConfiguration(scheduler_algorithm="best"))

    assert (caught.value.code, caught.value.text) == (RefusalCode.INVALID, "invalid scheduler algorithm: best")
    assert (state.replica.index, get_stored(state)) == before


def test_the_default_configuration_is_what_a_new_cluster_has() -> None:
    assert make_default_scheduler_configuration().preemption_config == get_stored(AState()).preemption_config


def test_the_default_autopilot_configuration_applies_until_one_is_stored() -> None:
    state = AState()

    assert configuration.get_autopilot_configuration(state.replica) == DEFAULT_AUTOPILOT_CONFIGURATION


def test_a_stored_autopilot_configuration_applies() -> None:
    state = AState()
    desired = AutopilotConfiguration(last_contact_threshold=5, max_trailing_logs=9)

    written = state.do(configuration.set_autopilot_configuration(state.replica, desired, expected_version=0))

    found = configuration.get_autopilot_configuration(state.replica)
    assert (written.is_updated, found.last_contact_threshold, found.max_trailing_logs) == (True, 5, 9)
    assert (found.create_index, found.modify_index) == (written.index, written.index)


def test_a_second_writer_that_expects_no_record_changes_nothing() -> None:
    state = AState()
    state.do(configuration.set_autopilot_configuration(state.replica, AutopilotConfiguration(min_quorum=3)))
    before = state.replica.index

    written = state.do(
        configuration.set_autopilot_configuration(state.replica, AutopilotConfiguration(), expected_version=0)
    )

    assert (written.is_updated, state.replica.index) == (False, before)
    assert configuration.get_autopilot_configuration(state.replica).min_quorum == 3


def test_all_negative_values_are_refused_together() -> None:
    state = AState()
    before = state.replica.index
    desired = AutopilotConfiguration(last_contact_threshold=-1, max_trailing_logs=-2)

    with pytest.raises(Refusal) as caught:
        configuration.set_autopilot_configuration(state.replica, desired)

    assert caught.value.text == "LastContactThreshold cannot be negative; MaxTrailingLogs cannot be negative"
    assert state.replica.index == before
