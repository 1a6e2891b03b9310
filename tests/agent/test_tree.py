"""The process tree: which processes run after each event."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wharf.agent.supervision.activity import Activity, SilenceLimits
from wharf.agent.supervision.process_tree import (
    MAX_IDLE_BEFORE_READY_S,
    MAX_SILENCE_BEFORE_READY_S,
    AnnounceReady,
    BeginPart,
    Effect,
    ExaminePart,
    FinishTree,
    KillPart,
    LogPartEnded,
    LogPartKilled,
    PartAlive,
    PartEnded,
    PartExamined,
    PartPhase,
    PartReady,
    ProcessSpec,
    ProcessTree,
    SpawnPart,
    StopPart,
    StopRequested,
    TimerFired,
)

PARTS = (
    ProcessSpec("store"),
    ProcessSpec("api", ("store",)),
    ProcessSpec("brain", ("store",)),
    ProcessSpec("node", ("api",)),
)
LIMITS = SilenceLimits(max_busy_s=60.0, max_idle_s=4.0, max_unknown_s=20.0)


def build_running_tree() -> ProcessTree:
    tree = ProcessTree(PARTS)
    tree.start(0.0)
    for name in ("store", "api", "brain", "node"):
        tree.handle_event(PartReady(name), 0.0)
    return tree


def test_all_parts_load_at_once_and_only_the_lowest_begins() -> None:
    assert ProcessTree(PARTS).start(0.0) == [
        SpawnPart("store"),
        SpawnPart("api"),
        SpawnPart("brain"),
        SpawnPart("node"),
        BeginPart("store"),
    ]


def test_a_part_begins_when_the_parts_it_depends_on_are_ready() -> None:
    tree = ProcessTree(PARTS)
    tree.start(0.0)

    assert tree.handle_event(PartReady("store"), 0.1) == [BeginPart("api"), BeginPart("brain")]
    assert tree.handle_event(PartReady("brain"), 0.1) == []
    assert tree.handle_event(PartReady("api"), 0.2) == [BeginPart("node")]
    assert tree.handle_event(PartReady("node"), 0.3) == [AnnounceReady()]


def test_a_part_that_ends_is_restarted_alone_after_a_growing_delay() -> None:
    tree = build_running_tree()

    assert tree.handle_event(PartEnded("api", "killed by SIGKILL"), 1.0) == [
        LogPartEnded("api", "killed by SIGKILL", 0.1)
    ]
    assert tree.next_deadline_s() == 1.1
    assert tree.handle_event(TimerFired(), 1.1) == [SpawnPart("api"), BeginPart("api")]
    assert tree.handle_event(PartEnded("api", "exit code 1", "the disk is full"), 1.2) == [
        LogPartEnded("api", "exit code 1: the disk is full", 0.5)
    ]


def test_a_part_that_is_killed_several_times_within_seconds_is_restarted_soon_and_a_failing_one_is_not() -> None:
    pauses_s: dict[str, list[float]] = {}
    for reason in ("", "the disk is full"):
        tree, now_s = build_running_tree(), 5.0
        for _ in range(10):
            (ended,) = tree.handle_event(PartEnded("node", "killed by SIGKILL", reason), now_s)
            assert isinstance(ended, LogPartEnded)
            pauses_s.setdefault(reason, []).append(ended.restart_delay_s)
            now_s += ended.restart_delay_s
            tree.handle_event(TimerFired(), now_s)

    assert pauses_s[""] == [0.1, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 30.0]
    assert pauses_s["the disk is full"] == [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 30.0, 30.0, 30.0]


def test_the_longest_restart_delay_is_a_setting_of_the_part() -> None:
    tree = ProcessTree([ProcessSpec("api", max_restart_pause_s=2.0), ProcessSpec("brain")])
    tree.start(0.0)
    for name in ("api", "brain"):
        tree.handle_event(PartReady(name), 0.0)
    delays_s: dict[str, list[float]] = {"api": [], "brain": []}
    for second in range(100, 900, 100):
        for name in delays_s:
            (end,) = tree.handle_event(PartEnded(name, "exit code 1", "no key"), float(second))
            assert isinstance(end, LogPartEnded)
            delays_s[name].append(end.restart_delay_s)
        tree.handle_event(TimerFired(), second + 50.0)

    assert delays_s["api"] == [0.1, 0.5, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert delays_s["brain"] == [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 30.0]


def test_being_ready_again_is_not_announced_twice() -> None:
    tree = build_running_tree()
    tree.handle_event(PartEnded("node", "exit code 1"), 5.0)
    tree.handle_event(TimerFired(), 6.0)

    assert tree.handle_event(PartReady("node"), 6.1) == []


def test_the_restart_delay_is_reset_after_a_part_ran_for_a_while() -> None:
    tree = build_running_tree()
    tree.handle_event(PartEnded("api", "exit code 1"), 5.0)
    tree.handle_event(TimerFired(), 5.1)
    tree.handle_event(PartReady("api"), 5.2)

    assert tree.handle_event(PartEnded("api", "exit code 1"), 100.0) == [LogPartEnded("api", "exit code 1", 0.1)]


def test_a_part_that_reports_a_start_error_ends_the_agent_with_that_error() -> None:
    tree = ProcessTree(PARTS)
    tree.start(0.0)

    stopping = tree.handle_event(PartEnded("store", "exit code 1", "the log is damaged"), 0.2)
    ended = [tree.handle_event(PartEnded(name, "exit code 0"), 0.3) for name in ("node", "api", "brain")]

    assert stopping == [StopPart("brain"), StopPart("node")]
    assert ended == [[StopPart("api")], [], [FinishTree("the log is damaged")]]


def test_a_part_that_ends_too_often_before_all_parts_are_ready_ends_the_agent() -> None:
    tree = ProcessTree(PARTS[:1])
    tree.start(0.0)
    for _ in range(2):
        tree.handle_event(PartEnded("store", "exit code 1"), 1.0)
        tree.handle_event(TimerFired(), 9.0)

    assert tree.handle_event(PartEnded("store", "exit code 1"), 9.1) == [
        FinishTree("store ended 3 times before it was ready (exit code 1)")
    ]


def test_parts_stop_in_the_reverse_order_of_their_start() -> None:
    tree = build_running_tree()

    assert tree.handle_event(StopRequested(), 9.0) == [StopPart("brain"), StopPart("node")]
    assert tree.handle_event(PartEnded("node", "exit code 0"), 9.1) == [StopPart("api")]
    assert tree.handle_event(PartEnded("api", "exit code 0"), 9.2) == []
    assert tree.handle_event(PartEnded("brain", "exit code 0"), 9.3) == [StopPart("store")]
    assert tree.handle_event(PartEnded("store", "exit code 0"), 9.4) == [FinishTree()]


def test_a_part_that_does_not_stop_in_time_is_killed() -> None:
    tree = ProcessTree((ProcessSpec("store", grace_s=2.0),))
    tree.start(0.0)
    tree.handle_event(StopRequested(), 1.0)

    assert tree.next_deadline_s() == 3.0
    assert tree.handle_event(TimerFired(), 3.0) == [
        LogPartKilled("store"),
        KillPart("store"),
    ]
    assert tree.handle_event(PartEnded("store", "killed by SIGKILL"), 3.1) == [FinishTree()]


def test_a_second_stop_request_kills_all_running_parts() -> None:
    tree = build_running_tree()
    tree.handle_event(StopRequested(), 9.0)
    tree.handle_event(PartEnded("node", "exit code 0"), 9.1)

    assert tree.handle_event(StopRequested(), 9.6) == [KillPart("store"), KillPart("api"), KillPart("brain")]


def test_two_stop_requests_at_once_count_as_one() -> None:
    tree = build_running_tree()
    tree.handle_event(StopRequested(), 9.0)

    assert tree.handle_event(StopRequested(), 9.1) == []


def test_a_part_that_waits_for_its_restart_is_not_started_after_a_stop_request() -> None:
    tree = ProcessTree(PARTS[:1])
    tree.start(0.0)
    tree.handle_event(PartReady("store"), 0.1)
    tree.handle_event(PartEnded("store", "exit code 1"), 1.0)

    assert tree.handle_event(StopRequested(), 1.01) == [FinishTree()]
    assert (tree.next_deadline_s(), tree.handle_event(TimerFired(), 9.0)) == (None, [])


def pass_silence(tree: ProcessTree, activity: Activity, until_s: float, *parts: str) -> dict[str, float]:
    """Let all timers fire until a time, and report this activity of examined parts. Return when which part was killed.

    Only `parts` are silent.
    """
    killed_at_s: dict[str, float] = {}
    while (now_s := tree.next_deadline_s()) is not None and now_s <= until_s:
        for name, state in tree.part_states.items():
            if name not in parts and state.phase is PartPhase.READY:
                tree.handle_event(PartAlive(name), now_s)
        for effect in tree.handle_event(TimerFired(), now_s):
            if isinstance(effect, ExaminePart):
                for kill in tree.handle_event(PartExamined(effect.part, activity), now_s):
                    assert isinstance(kill, KillPart)
                    killed_at_s.setdefault(kill.part, now_s)
    return killed_at_s


def build_ready_part(limits: SilenceLimits = LIMITS) -> ProcessTree:
    tree = ProcessTree([ProcessSpec("api", silence_limits=limits)])
    tree.start(0.0)
    tree.handle_event(PartReady("api"), 0.0)
    return tree


def test_a_part_that_sends_signs_of_life_is_not_examined() -> None:
    tree = build_ready_part()
    for second in range(1, 100):
        assert tree.handle_event(TimerFired(), float(second)) == []
        tree.handle_event(PartAlive("api"), float(second))


@pytest.mark.parametrize(
    ("activity", "limit_s"),
    [(Activity.IDLE, 4.0), (Activity.STOPPED, 4.0), (Activity.UNKNOWN, 20.0), (Activity.BUSY, 60.0)],
)
def test_a_silent_part_is_killed_after_the_limit_for_its_activity(activity: Activity, limit_s: float) -> None:
    assert pass_silence(build_ready_part(), activity, 200.0, "api") == {"api": limit_s}


def test_a_part_that_was_busy_and_then_hangs_has_the_limit_of_a_hung_part_from_then_on() -> None:
    tree = build_ready_part()
    assert pass_silence(tree, Activity.BUSY, 30.0, "api") == {}

    assert pass_silence(tree, Activity.IDLE, 200.0, "api") == {"api": 34.0}


def test_a_part_that_is_busy_now_and_then_is_killed_after_the_longest_limit() -> None:
    tree = build_ready_part()
    for second in range(0, 57, 3):
        assert pass_silence(tree, Activity.BUSY, second + 1.0, "api") == {}
        assert pass_silence(tree, Activity.IDLE, second + 3.0, "api") == {}

    assert pass_silence(tree, Activity.BUSY, 58.0, "api") == {}
    assert pass_silence(tree, Activity.IDLE, 60.0, "api") == {"api": 60.0}


def test_a_sign_of_life_ends_the_silence() -> None:
    tree = build_ready_part()
    pass_silence(tree, Activity.STOPPED, 3.5, "api")
    tree.handle_event(PartAlive("api"), 3.6)

    assert pass_silence(tree, Activity.STOPPED, 7.5, "api") == {}


def test_a_killed_part_is_restarted_and_its_log_line_names_the_reason_once() -> None:
    tree = build_ready_part()
    pass_silence(tree, Activity.STOPPED, 4.0, "api")
    tree.handle_event(PartExamined("api", Activity.IDLE), 4.5)

    assert tree.handle_event(PartEnded("api", "killed by SIGKILL"), 4.6) == [
        LogPartEnded("api", "killed: stopped, and no sign of life for 4 s", 0.1)
    ]
    assert tree.handle_event(TimerFired(), 4.7) == [SpawnPart("api"), BeginPart("api")]
    assert tree.handle_event(PartEnded("api", "exit code 1"), 5.0) == [LogPartEnded("api", "exit code 1", 0.1)]


def test_only_silent_parts_are_killed() -> None:
    assert pass_silence(build_running_tree(), Activity.IDLE, 50.0, "brain") == {"brain": 20.0}


@pytest.mark.parametrize(
    ("activity", "limit_s"),
    [
        (Activity.BUSY, MAX_SILENCE_BEFORE_READY_S),
        (Activity.UNKNOWN, MAX_SILENCE_BEFORE_READY_S),
        (Activity.IDLE, MAX_IDLE_BEFORE_READY_S),
        (Activity.STOPPED, 4.0),
    ],
)
def test_a_part_that_is_not_ready_yet_may_load_for_long_unless_it_hangs(activity: Activity, limit_s: float) -> None:
    tree = ProcessTree([ProcessSpec("api", silence_limits=LIMITS)])
    tree.start(0.0)

    assert pass_silence(tree, activity, 1_000.0, "api") == {"api": limit_s}


def test_time_in_which_the_whole_machine_was_suspended_is_no_silence() -> None:
    tree = build_running_tree()
    tree.handle_event(PartAlive("api"), 500.0)  # The parent reads messages before it handles deadlines.
    tree.handle_event(TimerFired(), 500.0)

    silent = ("store", "api", "brain", "node")
    assert pass_silence(tree, Activity.STOPPED, 517.0, *silent) == {}
    assert pass_silence(tree, Activity.STOPPED, 521.0, *silent).keys() == set(silent)


def test_a_part_that_has_ended_or_stops_is_not_killed_for_a_late_examination() -> None:
    tree = build_running_tree()
    tree.handle_event(PartEnded("api", "exit code 1"), 50.0)
    tree.handle_event(StopRequested(), 50.0)

    assert tree.handle_event(PartExamined("api", Activity.STOPPED), 100.0) == []
    assert tree.handle_event(PartExamined("node", Activity.STOPPED), 100.0) == []


def test_a_silent_part_has_only_its_grace_period_to_stop() -> None:
    tree = ProcessTree([ProcessSpec("node", grace_s=3.0)])
    tree.start(0.0)
    tree.handle_event(PartReady("node"), 0.0)
    tree.handle_event(StopRequested(), 19.0)

    assert tree.handle_event(TimerFired(), 20.5) == []
    assert tree.handle_event(TimerFired(), 22.0) == [
        LogPartKilled("node"),
        KillPart("node"),
    ]


class AnyHistory(RuleBasedStateMachine):
    """Simulated processes that obey the effects of the tree and may end at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.tree = ProcessTree(PARTS)
        self.loading: set[str] = set()
        self.running: set[str] = set()
        self.finish_count = 0
        self.examined: list[str] = []
        self.is_stop_requested = False
        self.apply_effects(self.tree.start(0.0))

    @property
    def living_parts(self) -> set[str]:
        return self.loading | self.running

    def apply_effects(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SpawnPart(name):
                    assert name not in self.living_parts
                    assert not self.is_stop_requested
                    self.loading.add(name)
                case BeginPart(name):
                    self.loading.remove(name)
                    self.running.add(name)
                case StopPart(name) | KillPart(name):
                    assert name in self.living_parts
                case ExaminePart(name):
                    assert name in self.living_parts
                    self.examined.append(name)
                case FinishTree():
                    assert not self.living_parts
                    self.finish_count += 1
                case _:
                    pass

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def report_part_ready(self, data: st.DataObject) -> None:
        self.apply_effects(
            self.tree.handle_event(PartReady(data.draw(st.sampled_from(sorted(self.running)))), self.now_s)
        )

    @precondition(lambda self: self.living_parts)
    @rule(data=st.data(), reason=st.sampled_from(["", "broken"]))
    def end_part(self, data: st.DataObject, reason: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.living_parts)))
        self.loading.discard(name)
        self.running.discard(name)
        self.apply_effects(self.tree.handle_event(PartEnded(name, "exit code 1", reason), self.now_s))

    @rule(name=st.sampled_from([part.name for part in PARTS]))
    def report_part_alive(self, name: str) -> None:
        self.apply_effects(self.tree.handle_event(PartAlive(name), self.now_s))

    @rule(seconds=st.sampled_from([0.05, 0.5, 5.0, 100.0]))
    def advance_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.apply_effects(self.tree.handle_event(TimerFired(), self.now_s))

    @precondition(lambda self: self.examined)
    @rule(activity=st.sampled_from(Activity))
    def report_examination(self, activity: Activity) -> None:
        self.apply_effects(self.tree.handle_event(PartExamined(self.examined.pop(), activity), self.now_s))

    @precondition(lambda self: self.living_parts)
    @rule()
    def request_stop(self) -> None:
        self.is_stop_requested = True
        self.apply_effects(self.tree.handle_event(StopRequested(), self.now_s))

    @invariant()
    def finishes_once_and_only_without_processes(self) -> None:
        assert self.finish_count <= 1
        assert not (self.finish_count and self.living_parts)

    @invariant()
    def without_processes_a_deadline_is_set_or_the_tree_has_finished(self) -> None:
        if not self.living_parts and not self.finish_count:
            assert self.tree.next_deadline_s() is not None

    def teardown(self) -> None:
        """Check that the tree finishes after a stop request once every process has ended."""
        if not self.finish_count:
            self.apply_effects(self.tree.handle_event(StopRequested(), self.now_s))
        for _ in range(len(PARTS)):
            for name in sorted(self.living_parts):
                self.loading.discard(name)
                self.running.discard(name)
                self.apply_effects(self.tree.handle_event(PartEnded(name, "exit code 0"), self.now_s))
        assert self.finish_count == 1


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(stateful_step_count=30)
