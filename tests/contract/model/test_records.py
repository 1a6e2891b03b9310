"""Wire keys of records, and the properties and functions of records."""

import datetime

import msgspec
import pytest

from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.resources import AllocatedResources, AllocatedSharedResources
from wharf.contract.model.allocations.task_states import TaskEventView, TaskState
from wharf.contract.model.cluster import list_bootstrap_records
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import (
    Evaluation,
    EvaluationStatus,
    EvaluationTrigger,
    SchedulerType,
    make_evaluation_stub,
)
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes import node as nodes
from wharf.contract.model.nodes.node import (
    DrainStrategy,
    Node,
    NodeEvent,
    NodeStatus,
    SchedulingEligibility,
    add_node_event,
    set_drain_strategy,
)
from wharf.contract.model.nodes.resources import NodeResources, ReservedResources
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.record import hash_content
from wharf.contract.model.services import make_registration_id
from wharf.contract.model.variables import Variable, VariableLock, make_variable_metadata

WHARF_FIELDS = {
    "WaitingSince", "ReservedNodeID", "WaitsBehind", "ReportNumber", "ReportsFrom", "ArrayAttempt", "ArrayItem", "ArrayResult",
    "OutputTexts", "LockKey", "LockWaits",
}  # fmt: skip
"""Fields of Wharf that the reference does not have."""


def list_wire_names(record: type[msgspec.Struct]) -> set[str]:
    return set(record.__struct_encode_fields__)


@pytest.mark.parametrize(
    ("record", "names"),
    [
        (NodeResources, "Cpu Processors Memory Disk Networks NodeNetworks Devices MinDynamicPort MaxDynamicPort"),
        (ReservedResources, "Cpu Memory Disk Networks"),
        (DrainStrategy, "Deadline IgnoreSystemJobs ForceDeadline StartedAt"),
        (NodeEvent, "Message Subsystem Details Timestamp CreateIndex"),
        (
            DeploymentGroup,
            "AutoRevert AutoPromote ProgressDeadline RequireProgressBy Promoted PlacedCanaries DesiredCanaries "
            "DesiredTotal PlacedAllocs HealthyAllocs UnhealthyAllocs",
        ),
        (
            Deployment,
            "ID Namespace JobID JobVersion JobModifyIndex JobSpecModifyIndex JobCreateIndex IsMultiregion EvalPriority "
            "Status StatusDescription CreateIndex ModifyIndex CreateTime ModifyTime TaskGroups",
        ),
        (
            Evaluation,
            "ID Namespace Priority Type TriggeredBy JobID JobModifyIndex NodeID NodeModifyIndex DeploymentID Status "
            "StatusDescription Wait WaitUntil NextEval PreviousEval BlockedEval RelatedEvals FailedTGAllocs "
            "PlanAnnotations ClassEligibility EscapedComputedClass QuotaLimitReached MissingNonNodeResources "
            "AnnotatePlan QueuedAllocations SnapshotIndex CreateIndex ModifyIndex CreateTime ModifyTime",
        ),
        (TaskState, "State Failed Restarts LastRestart StartedAt FinishedAt Events Paused"),
        (
            TaskEventView,
            "Type Time Message DisplayMessage Details FailsTask RestartReason SetupError DriverError ExitCode Signal "
            "KillTimeout KillError KillReason StartDelay DownloadError ValidationError DiskLimit FailedSibling "
            "VaultError TaskSignalReason TaskSignal DriverMessage GenericSource",
        ),
        (
            Allocation,
            "ID Namespace EvalID Name NodeID NodeName JobID JobVersion JobCreateIndex TaskGroup AllocatedResources "
            "Metrics DesiredStatus DesiredDescription DesiredTransition ClientStatus ClientDescription TaskStates "
            "AllocStates DeploymentID DeploymentStatus FollowupEvalID PreviousAllocation NextAllocation "
            "RescheduleTracker NetworkStatus PreemptedAllocations PreemptedByAllocation LogTails SigningKeyID "
            "CreateIndex ModifyIndex AllocModifyIndex CreateTime ModifyTime",
        ),
        (
            Node,
            "ID SecretDigest Name Datacenter NodeClass NodePool HTTPAddr TLSEnabled CgroupParent Attributes Meta Links "
            "NodeResources ReservedResources ComputedClass Drain DrainStrategy SchedulingEligibility Status "
            "StatusDescription StatusUpdatedAt IdentitySigningKeyID Events Drivers HostVolumes GCVolumesOnNodeGC "
            "HostNetworks CSIControllerPlugins CSINodePlugins LastDrain NodeMaxAllocs LastMissedHeartbeatIndex "
            "LastAllocUpdateIndex CreateIndex ModifyIndex",
        ),
        (
            SchedulerConfiguration,
            "SchedulerAlgorithm MemoryOversubscriptionEnabled RejectJobRegistration PauseEvalBroker "
            "NodeLimitForFeasibilityChecks PreemptionConfig CreateIndex ModifyIndex",
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_record_has_the_keys_of_the_reference(record: type[msgspec.Struct], names: str) -> None:
    assert list_wire_names(record) - WHARF_FIELDS == set(names.split())


@pytest.mark.parametrize("record", [Node, Token])
def test_no_record_holds_a_plain_secret(record: type[msgspec.Struct]) -> None:
    assert "SecretID" not in list_wire_names(record)


def an_allocation(**states: str) -> Allocation:
    return Allocation(
        id="a1",
        desired_status=DesiredStatus(states.get("desired", "run")),
        client_status=ClientStatus(states.get("client", "running")),
    )


@pytest.mark.parametrize(
    ("desired", "client", "is_terminal", "is_occupying"),
    [
        ("run", "pending", False, True),
        ("run", "running", False, True),
        ("run", "unknown", False, True),
        ("stop", "running", True, True),
        ("evict", "running", True, True),
        ("stop", "complete", True, False),
        ("run", "failed", True, False),
        ("stop", "lost", True, False),
    ],
)
def test_an_allocation_uses_resources_until_its_node_reports_its_end(
    desired: str, client: str, is_terminal: bool, is_occupying: bool
) -> None:
    allocation = an_allocation(desired=desired, client=client)

    assert (allocation.is_terminal, allocation.is_occupying) == (is_terminal, is_occupying)


def test_the_resources_of_an_allocation_stay_encoded_so_that_siblings_can_share_them() -> None:
    resources = AllocatedResources(shared=AllocatedSharedResources(disk_mb=300))
    stored = msgspec.msgpack.encode(msgspec.structs.replace(an_allocation(), allocated_resources=resources))

    read = msgspec.msgpack.decode(stored, type=Allocation)

    assert msgspec.msgpack.decode(read.allocated_resources, type=AllocatedResources) == resources  # type: ignore[call-overload]  # bytes until decoded
    assert msgspec.msgpack.encode(read) == stored


def test_decoded_statuses_are_enum_members() -> None:
    read = msgspec.json.decode(msgspec.json.encode(an_allocation()), type=Allocation)

    assert read.client_status is ClientStatus.RUNNING


def test_a_draining_node_has_both_drain_fields_set() -> None:
    node = set_drain_strategy(Node(id="n1"), DrainStrategy(deadline=5))

    assert (node.drain, node.drain_strategy) == (True, DrainStrategy(deadline=5))
    assert set_drain_strategy(node, None) == Node(id="n1")


@pytest.mark.parametrize(
    ("node", "is_ready"),
    [
        (Node(id="n1", status=NodeStatus.READY), True),
        (Node(id="n1"), False),
        (Node(id="n1", status=NodeStatus.READY, scheduling_eligibility=SchedulingEligibility.INELIGIBLE), False),
        (set_drain_strategy(Node(id="n1", status=NodeStatus.READY), DrainStrategy()), False),
    ],
)
def test_only_a_ready_eligible_node_without_a_drain_accepts_placements(node: Node, is_ready: bool) -> None:
    assert node.is_ready_for_placements == is_ready


def test_a_node_retains_its_newest_events() -> None:
    node = Node(id="n1")
    for number in range(nodes.MAX_NODE_EVENTS + 3):
        node = add_node_event(node, NodeEvent(message=str(number)))

    assert [event.message for event in node.events or ()] == [str(number) for number in range(3, 13)]


def test_a_deployment_awaits_promotion_while_a_group_with_canaries_is_not_promoted() -> None:
    def a_deployment(**group: bool | int) -> Deployment:
        return Deployment(
            id="d1",
            status=DeploymentStatus.RUNNING,
            task_groups={"front": DeploymentGroup(desired_canaries=1), "back": DeploymentGroup()}
            if not group
            else {"front": DeploymentGroup(desired_canaries=1, promoted=True)},
        )

    assert a_deployment().is_awaiting_promotion
    assert not a_deployment(promoted=True).is_awaiting_promotion


def test_an_evaluation_stub_copies_the_fields_of_the_evaluation() -> None:
    evaluation = Evaluation(
        id="e1",
        type=SchedulerType.BATCH,
        triggered_by=EvaluationTrigger.ALLOC_STOP,
        status=EvaluationStatus.BLOCKED,
        previous_eval="e0",
        create_index=7,
    )

    short = make_evaluation_stub(evaluation)

    assert (short.id, short.type, short.status, short.previous_eval, short.create_index) == (
        "e1",
        SchedulerType.BATCH,
        EvaluationStatus.BLOCKED,
        "e0",
        7,
    )


def test_variable_metadata_contain_the_lock_only_if_there_is_one() -> None:
    free = Variable(namespace="default", path="a", data=b"x", key_id="k1", modify_index=3)
    locked = msgspec.structs.replace(free, lock=VariableLock(id="l1"))

    assert b"Lock" not in msgspec.json.encode(make_variable_metadata(free))
    assert make_variable_metadata(locked).lock == VariableLock(id="l1")
    assert b"Data" not in msgspec.json.encode(make_variable_metadata(locked))


def test_the_id_of_a_registration_without_a_port_ends_in_a_dash() -> None:
    named = make_registration_id(alloc_id="a1", owner="group-front", service="web", port_label="")

    assert named == "_nomad-task-a1-group-front-web-"


def test_a_new_cluster_has_default_namespace_node_pools_and_scheduler_configuration() -> None:
    records = list_bootstrap_records()

    assert [(type(record).__name__, getattr(record, "name", "")) for record in records] == [
        ("Namespace", "default"),
        ("NodePool", "all"),
        ("NodePool", "default"),
        ("SchedulerConfiguration", ""),
        ("RecordFormat", ""),
    ]
    assert [record.preemption_config.system_scheduler_enabled for record in records if isinstance(record, SchedulerConfiguration)] == [True]  # fmt: skip


def test_server_settings_may_replace_the_first_scheduler_configuration() -> None:
    spread = SchedulerConfiguration(scheduler_algorithm="spread")

    assert spread in list_bootstrap_records(spread)


def test_the_content_hash_ignores_fields_that_servers_set() -> None:
    written = Namespace(name="a", meta={"x": "1", "y": "2"})

    assert hash_content(Namespace(name="a", meta={"y": "2", "x": "1"}, modify_index=9, hash=b"h")) == hash_content(
        written
    )
    assert hash_content(Namespace(name="a", meta={"x": "1"})) != hash_content(written)
    assert hash_content(
        Token(accessor_id="a", create_time=datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC))
    ) == hash_content(Token(accessor_id="a", secret_sealed=b"s"))


def test_the_content_hash_of_a_token_depends_on_its_secret() -> None:
    assert hash_content(Token(accessor_id="a", secret_digest="d")) != hash_content(Token(accessor_id="a"))
