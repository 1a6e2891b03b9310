"""The settings of a server: limits, retention times, heartbeats, access control, keyring and regions."""

import enum
from typing import Annotated

import msgspec

from wharf.contract.model.operator.scheduler_configuration import (
    PreemptionConfig,
    SchedulerAlgorithm,
    SchedulerConfiguration,
)
from wharf.contract.model.settings import Duration, SecretText, SettingInfo, Size
from wharf.contract.model.times import HOUR, MINUTE, SECOND


class PlanRejectionTrackerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a node that repeatedly rejects plans is made ineligible for new allocations."""

    enabled: Annotated[bool, SettingInfo("Whether a node that repeatedly rejects plans is made ineligible.")] = False
    node_threshold: Annotated[
        int, SettingInfo("Number of rejections within the window that make a node ineligible.", min_value=1)
    ] = 100
    node_window: Annotated[Duration, SettingInfo("Time window in which rejections are counted.")] = Duration(5 * MINUTE)


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the search endpoints."""

    fuzzy_enabled: Annotated[bool, SettingInfo("Whether fuzzy search is available.")] = True
    limit_query: Annotated[
        int, SettingInfo("Maximum number of records of each table that a search scans.", min_value=1)
    ] = 100_000
    limit_results: Annotated[
        int, SettingInfo("Maximum number of results for each context of a fuzzy search.", min_value=1)
    ] = 100
    min_term_length: Annotated[int, SettingInfo("Minimum length of the text of a fuzzy search.", min_value=1)] = 2


class PreemptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For which types of jobs the scheduler may stop allocations of lower priority."""

    system_scheduler_enabled: Annotated[bool, SettingInfo("For system jobs.")] = True
    sysbatch_scheduler_enabled: Annotated[bool, SettingInfo("For sysbatch jobs.")] = False
    batch_scheduler_enabled: Annotated[bool, SettingInfo("For batch jobs.")] = False
    service_scheduler_enabled: Annotated[bool, SettingInfo("For service jobs.")] = False


class DefaultSchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler configuration that a new cluster starts with."""

    scheduler_algorithm: Annotated[
        SchedulerAlgorithm, SettingInfo("`binpack` fills nodes one after another, `spread` evens them out.")
    ] = SchedulerAlgorithm.BINPACK
    memory_oversubscription_enabled: Annotated[
        bool, SettingInfo("Whether tasks may use memory up to `memory_max`, above `memory`.")
    ] = False
    reject_job_registration: Annotated[bool, SettingInfo("Whether only management tokens may register jobs.")] = False
    pause_eval_broker: Annotated[bool, SettingInfo("Whether the scheduler of a new cluster is paused.")] = False
    node_limit_for_feasibility_checks: Annotated[
        int, SettingInfo("Number of nodes that are scored for spreads and affinities; 0 means 100.", min_value=0)
    ] = 0
    preemption_config: Annotated[
        PreemptionSettings, SettingInfo("The job types that may preempt allocations of lower priority.")
    ] = PreemptionSettings()

    def configuration(self) -> SchedulerConfiguration:
        """Return the record that a new cluster starts with."""
        preemption = self.preemption_config
        return SchedulerConfiguration(
            # An empty algorithm means "use the cluster's", which is valid for node pools only.
            scheduler_algorithm=self.scheduler_algorithm or SchedulerAlgorithm.BINPACK,
            memory_oversubscription_enabled=self.memory_oversubscription_enabled,
            reject_job_registration=self.reject_job_registration,
            pause_eval_broker=self.pause_eval_broker,
            node_limit_for_feasibility_checks=self.node_limit_for_feasibility_checks,
            preemption_config=PreemptionConfig(
                system_scheduler_enabled=preemption.system_scheduler_enabled,
                sys_batch_scheduler_enabled=preemption.sysbatch_scheduler_enabled,
                batch_scheduler_enabled=preemption.batch_scheduler_enabled,
                service_scheduler_enabled=preemption.service_scheduler_enabled,
            ),
        )


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the `server` block."""

    enabled: Annotated[bool, SettingInfo("Whether this agent is a server: HTTP, state and scheduling.")] = False
    begin_cluster: Annotated[
        bool,
        SettingInfo(
            "Whether this server may begin an empty cluster. Set it to false after the first start: then a server whose disk is "
            "not mounted or whose `data_dir` or etcd is wrong ends with an error instead."
        ),
    ] = True
    authoritative_region: Annotated[
        str,
        SettingInfo("The region from which tokens and policies are replicated.", default_text="the agent's own region"),
    ] = ""
    enabled_schedulers: Annotated[tuple[str, ...], SettingInfo("The types of jobs that this server schedules.")] = (
        "service",
        "batch",
        "system",
        "sysbatch",
        "_core",
    )
    enable_event_broker: Annotated[bool, SettingInfo("Whether the event stream is available.")] = True
    event_buffer_size: Annotated[
        int, SettingInfo("Number of recent commits that a new event stream can replay.", min_value=1)
    ] = 100
    job_max_source_size: Annotated[Size, SettingInfo("Maximum size of the source text that is stored with a job.")] = (
        Size(1_000_000)
    )
    job_tracked_versions: Annotated[int, SettingInfo("Number of versions of a job that are stored.", min_value=1)] = 6
    job_default_priority: Annotated[
        int, SettingInfo("The priority of a job that sets none.", min_value=1, max_value=100)
    ] = 50
    job_max_priority: Annotated[
        int, SettingInfo("The highest priority that a job may have.", min_value=1, max_value=32_766)
    ] = 100
    job_max_count: Annotated[int, SettingInfo("Maximum sum of the counts of a job's groups.", min_value=1)] = 50_000
    job_gc_interval: Annotated[Duration, SettingInfo("How often garbage collection runs.")] = Duration(5 * MINUTE)
    job_gc_threshold: Annotated[Duration, SettingInfo("How long a dead job is retained.")] = Duration(4 * HOUR)
    batch_job_gc_threshold: Annotated[
        Duration,
        SettingInfo(
            "How long an ended batch or sysbatch job is retained, so that its results can be found on the nodes."
        ),
    ] = Duration(168 * HOUR)
    batch_gc_max_results: Annotated[
        int,
        SettingInfo(
            "Number of ended batch jobs that are retained longer than job_gc_threshold. Ten allocations of a job count as "
            "one job more.",
            min_value=0,
        ),
    ] = 10_000
    eval_gc_threshold: Annotated[Duration, SettingInfo("How long a completed evaluation is retained.")] = Duration(HOUR)
    batch_eval_gc_threshold: Annotated[
        Duration, SettingInfo("How long a completed evaluation of a batch job is retained, with its allocations.")
    ] = Duration(168 * HOUR)
    deployment_gc_threshold: Annotated[Duration, SettingInfo("How long a completed deployment is retained.")] = (
        Duration(HOUR)
    )
    node_gc_threshold: Annotated[
        Duration, SettingInfo("How long a node that is down and has no allocations is retained.")
    ] = Duration(24 * HOUR)
    acl_token_gc_threshold: Annotated[Duration, SettingInfo("How long an expired token is retained.")] = Duration(HOUR)
    root_key_gc_interval: Annotated[
        Duration, SettingInfo("How often the keyring is checked for keys to rotate or delete.")
    ] = Duration(10 * MINUTE)
    root_key_gc_threshold: Annotated[Duration, SettingInfo("How long an unused key is retained.")] = Duration(HOUR)
    root_key_rotation_threshold: Annotated[
        Duration, SettingInfo("Maximum age of the active key; then the keyring is rotated.")
    ] = Duration(720 * HOUR)
    heartbeat_grace: Annotated[
        Duration,
        SettingInfo("How long after its heartbeat TTL a node is still considered alive; at least a fifth of the TTL."),
    ] = Duration(10 * SECOND)
    min_heartbeat_ttl: Annotated[Duration, SettingInfo("Minimum time between two heartbeats of a node.")] = Duration(
        10 * SECOND
    )
    max_heartbeats_per_second: Annotated[
        float,
        SettingInfo("Maximum heartbeats of all nodes per second; in larger clusters each node sends them less often."),
    ] = 50.0
    failover_heartbeat_ttl: Annotated[
        Duration,
        SettingInfo(
            "How long nodes may be silent after a change of the leader, or while the servers cannot receive heartbeats; at "
            "least 30s, and longer in clusters whose heartbeat TTLs are long."
        ),
    ] = Duration(5 * MINUTE)
    oidc_issuer: Annotated[
        str, SettingInfo("The issuer claim of workload identities; without it, OIDC discovery is off.")
    ] = ""
    plan_rejection_tracker: Annotated[
        PlanRejectionTrackerSettings, SettingInfo("Detection of nodes that repeatedly reject plans.")
    ] = PlanRejectionTrackerSettings()
    search: Annotated[SearchSettings, SettingInfo("Limits of the search endpoints.")] = SearchSettings()
    default_scheduler_config: Annotated[
        DefaultSchedulerSettings, SettingInfo("The scheduler configuration that a new cluster starts with.")
    ] = DefaultSchedulerSettings()


class AclSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the `acl` block."""

    enabled: Annotated[bool, SettingInfo("Whether requests require a token.")] = False
    token_ttl: Annotated[Duration, SettingInfo("How long a node caches the permissions of a token.")] = Duration(
        30 * SECOND
    )
    policy_ttl: Annotated[Duration, SettingInfo("How long a node caches a policy.")] = Duration(30 * SECOND)
    role_ttl: Annotated[Duration, SettingInfo("How long a node caches a role.")] = Duration(30 * SECOND)
    token_min_expiration_ttl: Annotated[Duration, SettingInfo("Minimum lifetime of a token.")] = Duration(MINUTE)
    token_max_expiration_ttl: Annotated[Duration, SettingInfo("Maximum lifetime of a token.")] = Duration(24 * HOUR)
    replication_token: Annotated[
        SecretText,
        SettingInfo(
            "A management token of the authoritative region. It authorizes the replication of policies, global tokens "
            "and other global records."
        ),
    ] = SecretText()


class SigningAlgorithm(enum.StrEnum):
    """The algorithm of keys that sign identities."""

    RS256 = "RS256"
    ED25519 = "Ed25519"


class KeyringSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the `keyring` block."""

    file: Annotated[
        str,
        SettingInfo(
            "The file with the wrapping key of the keyring. Created if it does not exist, readable by its owner only. All "
            "servers of a cluster need the same key, and a snapshot cannot be used without it.",
            default_text="`keyring.key` in the data folder",
        ),
    ] = ""
    secret: Annotated[
        SecretText,
        SettingInfo(
            "The wrapping key as text, instead of a file: the output of `wharf operator keyring generate`. During a change of "
            "the key, two keys with a space between them; the first one encrypts. Only the owner of a file with this setting "
            "may have access to the file.",
            is_reloadable=True,
        ),
    ] = SecretText()
    signing_algorithm: Annotated[
        SigningAlgorithm,
        SettingInfo("The algorithm of new keys that sign identities. Existing keys are not changed."),
    ] = SigningAlgorithm.RS256


class RegionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the servers of another region."""

    servers: Annotated[tuple[str, ...], SettingInfo("The HTTP addresses of that region's servers.")] = ()
