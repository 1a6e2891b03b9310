"""Random runs of up to 12 steps, in random orders, with cancels at random times, against a small model."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from simulation.step_model import (
    FAILED,
    Ending,
    ModelNeed,
    ModelStep,
    Moment,
    add_implied_needs,
    can_begin,
    never_begins,
    obeys_job_need,
    predict,
    predict_run,
    was_stopped,
)
from tests.cluster.scheduling.steps.cases import NOW_NS, a_run, a_step
from wharf.cluster.scheduling.steps.decider import (
    UNDECIDED_PHASES,
    ConditionResult,
    StepChange,
    StepFacts,
    decide_steps,
    describe_needed,
    judge_run,
    judge_step,
    select_startable,
)
from wharf.cluster.scheduling.steps.needs import NeededStep
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepOutcome, StepPhase, StepState
from wharf.contract.model.jobs.steps import Gate, Need
from wharf.contract.model.times import SECOND

MAX_STEPS = 12
GATE_TIMEOUT_NS = 60 * SECOND
NEVER_BEGAN = (StepPhase.SKIPPED, StepPhase.FAILED, StepPhase.CANCELED)


@st.composite
def runs(draw: st.DrawFn) -> list[ModelStep]:
    """Return a run. A step stands after those that it needs."""
    steps: list[ModelStep] = []
    for number in range(draw(st.integers(1, MAX_STEPS))):
        size = draw(st.sampled_from([1, 1, 2, 3]))
        needs = []
        for other in draw(st.lists(st.sampled_from(steps), max_size=3, unique_by=id)) if steps else []:
            form = draw(st.sampled_from(["whole", "whole", "each", "count"]))
            needs.append(
                ModelNeed(
                    other.name,
                    draw(st.sampled_from(["succeeded", "succeeded", "failed", "ended", "any"])),
                    each=form == "each" and len(other.results) == size,
                    at_least=draw(st.integers(1, len(other.results))) if form == "count" else 0,
                    optional=draw(st.booleans()),
                )
            )
        steps.append(
            ModelStep(
                f"s{number}",
                tuple(needs),
                draw(st.text("ssf", min_size=size, max_size=size)),
                may_fail=draw(st.sampled_from([False, False, True])),
                final=draw(st.sampled_from([False, False, False, True])),
                condition=draw(st.sampled_from(["", "", "", "true", "false", "error"])),
                gate=draw(st.sampled_from(["", "", "", "approve", "reject", "expire"])),
            )
        )
    return steps


def make_group(step: ModelStep) -> TaskGroup:
    needs = (
        Need(on=need.on, when=need.when, each=need.each, at_least=need.at_least, optional=need.optional)
        for need in step.needs
    )
    return a_step(
        step.name,
        *needs,
        size=len(step.results),
        may_fail=step.may_fail,
        final=step.final,
        condition=step.condition,
        gate=Gate(timeout=GATE_TIMEOUT_NS) if step.gate else None,
    )


class Driver:
    """Runs the steps of a model with the decider, one event after the other in a random order.

    It stores what servers store, and nothing else: each decision begins from these facts, as after a restart.
    """

    def __init__(
        self, steps: list[ModelStep], order: Random, *, job_need: str = "", has_leftovers: bool = False
    ) -> None:
        self.steps = {step.name: step for step in add_implied_needs(steps)}
        self.order = order
        self.now_ns = NOW_NS
        self.groups = {step.name: make_group(step) for step in steps}
        self.job = a_run(*self.groups.values(), depends=(Need(on="import"),) if job_need else None)
        self.job_need = job_need
        self.is_job_need_known = not job_need
        self.states = {name: StepState() for name in self.steps}
        self.elements = {name: bytearray(b"." * len(step.results)) for name, step in self.steps.items()}
        self.alive: set[tuple[str, int]] = set()
        self.leftovers: set[tuple[str, int]] = {
            (name, index)
            for name, step in (self.steps.items() if has_leftovers else ())
            for index in range(len(step.results))
            if order.random() < 0.3
        }
        """Elements whose task of an earlier attempt has not stopped yet."""
        self.started: set[tuple[str, int]] = set()
        self.is_canceled = False
        self.decide()

    # -- facts ---------------------------------------------------------------------------------------------------------

    def read_facts(self) -> dict[str, StepFacts]:
        running = [*self.alive, *self.leftovers]
        return {
            name: StepFacts(
                self.groups[name],
                self.states[name],
                bytes(self.elements[name]),
                sum(each == name for each, _ in running),
                sum(each == name and self.elements[name][index] == ord("c") for each, index in running),
            )
            for name in self.steps
        }

    def read_moments(self) -> dict[str, Moment]:
        """Return the same facts in the words of the model."""
        moments = {}
        running = self.alive | self.leftovers
        for name, step in self.steps.items():
            state = self.states[name]
            elements = "".join(
                "?" if (name, index) in running and code == "c" else code
                for index, code in enumerate(self.elements[name].decode())
            )
            end = ""
            if state.phase is StepPhase.SKIPPED:
                assert state.cause is not None
                end = "skipped-by-condition" if state.cause.kind == StepCauseKind.CONDITION else "skipped-by-need"
            elif state.phase in NEVER_BEGAN:
                end = state.phase.value
            is_decided = state.phase not in UNDECIDED_PHASES
            is_alive = any(each == name for each, _ in self.leftovers)
            moments[name] = Moment(step, elements, is_decided, end, bool(state.began_at), is_alive)
        return moments

    # -- decisions -----------------------------------------------------------------------------------------------------

    def evaluate(self, group: TaskGroup) -> ConditionResult:
        condition = self.steps[group.name].condition
        return ConditionResult(condition == "true", "value", is_error=condition == "error")

    def find_other_jobs(self) -> dict[str, NeededStep]:
        outcome = StepOutcome(self.job_need) if self.is_job_need_known and self.job_need else StepOutcome.OPEN
        return {"import": NeededStep(outcome)}

    def decide(self) -> None:
        """Apply decisions until nothing changes, and compare each one with the model."""
        while True:
            facts = self.read_facts()
            changes = decide_steps(self.job, facts, self.find_other_jobs(), self.now_ns, self.evaluate)
            stopped = {name for name, moment in self.read_moments().items() if was_stopped(moment)}
            assert stopped == {each.name for each in changes if each.state.phase is StepPhase.CANCELED}
            for change in changes:
                self.apply(change)
            for change in changes:
                if not change.elements and change.name not in stopped:
                    self.check_change(change.name)
            if not changes:
                break
        self.check_waiting()

    def apply(self, change: StepChange) -> None:
        """Store what was decided about a step."""
        name, former = change.name, self.states[change.name]
        assert former.phase in UNDECIDED_PHASES or change.state is former, "a decided step never changes"
        self.states[name] = change.state
        if change.never_begins:
            self.cancel_open(name)
        for index, (old, new) in enumerate(zip(bytes(self.elements[name]), change.elements, strict=False)):
            if old != new:
                assert (chr(old), chr(new), (name, index) in self.alive) == (".", "x", False)
                self.elements[name][index] = new

    def cancel_open(self, name: str) -> None:
        self.elements[name] = self.elements[name].replace(b".", b"c")

    def check_change(self, name: str) -> None:
        """Require that the model allows what was decided about a step."""
        step, state, moments = self.steps[name], self.states[name], self.read_moments()
        cause = state.cause
        if state.phase is StepPhase.SKIPPED and cause is not None and cause.kind == StepCauseKind.NEED:
            assert never_begins(step, moments), f"{name} was skipped but its needs may still hold"
        elif state.phase is StepPhase.SKIPPED and cause is not None and cause.kind == StepCauseKind.JOB:
            assert self.is_job_need_known
            assert self.job_need != StepOutcome.SUCCEEDED
            assert obeys_job_need(step, self.steps.values())
        else:
            assert can_begin(step, moments), f"{name} is {state.phase} before its needs allow"
            others = [self.states[other.name].phase for other in self.steps.values() if not other.final]
            is_cleaning = step.final and bool(others) and not UNDECIDED_PHASES.intersection(others)
            assert self.is_job_need_known or is_cleaning, f"{name} begins before its job may"
            assert (state.phase is StepPhase.GATED) == (bool(step.gate) and step.condition in ("", "true")) or (
                cause is not None and cause.kind == StepCauseKind.GATE
            )

    def check_waiting(self) -> None:
        """Require that no step waits although its needs have decided."""
        moments = self.read_moments()
        for name, state in self.states.items():
            step = self.steps[name]
            if state.phase is not StepPhase.WAITING or not self.is_job_need_known:
                continue
            assert not never_begins(step, moments), f"{name} waits for something that never happens"
            running = self.alive | self.leftovers
            if step.final and any(self.states[other].phase is StepPhase.CANCELED for other, _ in running):
                continue  # It cleans up after the canceled tasks have stopped.
            waits_for_all = any(need.each for need in step.needs) and (step.gate or step.condition)
            assert waits_for_all or not can_begin(step, moments), f"{name} waits although it could begin"

    # -- events --------------------------------------------------------------------------------------------------------

    def list_events(self) -> list[tuple[str, str, int]]:
        """Return the events that can happen now."""
        events = [("end", name, index) for name, index in sorted(self.alive)]
        events += [("leftover ends", name, index) for name, index in sorted(self.leftovers)]
        needed = {name: describe_needed(facts) for name, facts in self.read_facts().items()}
        for name, state in self.states.items():
            if state.phase is StepPhase.READY:
                startable = select_startable(self.groups[name], bytes(self.elements[name]), needed)
                events += [
                    ("begin", name, index)
                    for index, code in enumerate(startable)
                    if code == ord(".") and (name, index) not in self.alive
                ]
            elif state.phase is StepPhase.GATED:
                events.append(("answer", name, 0))
        if not self.is_job_need_known:
            events.append(("job ends", "", 0))
        return events

    def take_step(self) -> bool:
        """Let one event happen. Return whether there was one."""
        events = self.list_events()
        if not events:
            return False
        kind, name, index = self.order.choice(events)
        if kind == "begin":
            self.begin(name, index)
        elif kind == "end":
            self.end(name, index)
        elif kind == "leftover ends":
            self.leftovers.discard((name, index))
        elif kind == "answer":
            self.answer(name)
        else:
            self.is_job_need_known = True
        self.decide()
        return True

    def begin(self, name: str, index: int) -> None:
        assert can_begin(self.steps[name], self.read_moments(), index), f"{name}[{index}] begins before its needs allow"
        assert (name, index) not in self.started, f"{name}[{index}] begins twice"
        self.started.add((name, index))
        self.alive.add((name, index))
        self.now_ns += 1
        if not self.states[name].began_at:
            self.states[name] = self._replace(name, began_at=self.now_ns)

    def end(self, name: str, index: int) -> None:
        self.alive.discard((name, index))
        is_stopped = self.elements[name][index] == ord("c") and self.order.random() < 0.5
        if not is_stopped:
            self.elements[name][index] = ord(self.steps[name].results[index])

    def answer(self, name: str) -> None:
        """Answer a gate, or let its time pass."""
        answer = self.steps[name].gate
        if answer == "expire":
            self.now_ns = max(self.now_ns, self.states[name].gate_deadline)
            # The time passes for all gates. Those that end soon are answered before.
            soon_ns = self.now_ns + GATE_TIMEOUT_NS // 2
            for other, state in self.states.items():
                if state.phase is StepPhase.GATED and state.gate_deadline <= soon_ns and other != name:
                    self.answer_in_time(other)
        else:
            self.answer_in_time(name)

    def answer_in_time(self, name: str) -> None:
        if self.steps[name].gate == "expire":
            return
        is_approved = self.steps[name].gate == "approve"
        phase = StepPhase.READY if is_approved else StepPhase.FAILED
        self.states[name] = self._replace(name, phase=phase, cause=StepCause(kind=StepCauseKind.GATE, actor="eve"))
        if not is_approved:
            self.cancel_open(name)

    def cancel(self, names: list[str]) -> None:
        """Cancel steps, as a user does with a whole run and a lock with one step."""
        for name in names:
            if judge_step(self.read_facts()[name]) is StepOutcome.OPEN and self.states[name].phase not in NEVER_BEGAN:
                cause = StepCause(kind=StepCauseKind.CANCEL, actor="eve")
                self.states[name] = self._replace(name, phase=StepPhase.CANCELED, cause=cause)
                self.cancel_open(name)

    def cancel_run(self) -> None:
        self.is_canceled = True
        self.cancel([name for name, step in self.steps.items() if not step.final])
        self.decide()

    def cancel_step(self) -> None:
        self.cancel([self.order.choice(list(self.steps))])
        self.decide()

    def stop_element(self) -> None:
        """Stop one element that has not ended, as a user does. Its task may still succeed."""
        found = [
            (name, index)
            for name, codes in self.elements.items()
            for index, code in enumerate(codes)
            if code == ord(".")
        ]
        if found:
            name, index = self.order.choice(found)
            self.elements[name][index] = ord("c")
        self.decide()

    def _replace(self, name: str, **fields: object) -> StepState:
        state = self.states[name]
        values = {each: getattr(state, each) for each in StepState.__struct_fields__}
        return StepState(**{**values, **fields})

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let events happen until there are no more."""
        for _ in range(20 * MAX_STEPS):
            if not self.take_step():
                return
        raise AssertionError("the run does not end")

    def read_ends(self) -> dict[str, str]:
        return {name: judge_step(facts).value for name, facts in self.read_facts().items()}

    def check_ended(self) -> None:
        assert "open" not in self.read_ends().values(), self.read_ends()
        assert judge_run(self.read_facts().values()).outcome
        for name, step in self.steps.items():
            if step.final and self.states[name].phase is StepPhase.SKIPPED:
                cause = self.states[name].cause
                assert cause is not None
                is_bound = obeys_job_need(step, self.steps.values())
                assert cause.kind == StepCauseKind.CONDITION or (is_bound and cause.kind == StepCauseKind.JOB)

    def check_causes(self) -> None:
        """Require that each chain of causes ends at something that happened, and names no step twice."""
        ends = self.read_ends()
        for name, state in self.states.items():
            chain = [name]
            while (
                state.phase is StepPhase.SKIPPED and state.cause is not None and state.cause.kind == StepCauseKind.NEED
            ):
                needed = state.cause.step
                assert needed in {need.on for need in self.steps[chain[-1]].needs}
                assert needed not in chain
                assert state.cause.outcome in (ends[needed], StepOutcome.OPEN, StepOutcome.FAILED) or self.is_canceled
                chain.append(needed)
                state = self.states[needed]
            assert state.phase not in UNDECIDED_PHASES
            if state.phase in NEVER_BEGAN:
                assert state.cause is not None
                assert state.cause.kind in (
                    StepCauseKind.CONDITION,
                    StepCauseKind.GATE,
                    StepCauseKind.CANCEL,
                    StepCauseKind.JOB,
                )


def read_endings(driver: Driver) -> dict[str, Ending]:
    """Return the ends of all steps in the form of the model, as needs see them."""
    return {
        name: Ending(end, driver.elements[name].decode(), driver.steps[name].may_fail)
        for name, end in driver.read_ends().items()
    }


JOB_NEEDS = st.sampled_from(["", "", "succeeded", "failed", "canceled-while-running"])


@given(runs(), JOB_NEEDS, st.lists(st.integers(0, 2**32), min_size=3, max_size=3), st.booleans())
def test_every_order_of_reports_ends_as_the_model_predicts(
    steps: list[ModelStep], job_need: str, seeds: list[int], has_leftovers: bool
) -> None:
    holds = job_need in ("", "succeeded")
    predicted = predict(steps, holds)

    for seed in seeds:
        driver = Driver(steps, Random(seed), job_need=job_need, has_leftovers=has_leftovers)
        driver.finish()

        driver.check_ended()
        driver.check_causes()
        found = {name: (ending.end, ending.elements) for name, ending in read_endings(driver).items()}
        assert found == {name: (ending.seen, ending.elements) for name, ending in predicted.items()}
        assert judge_run(driver.read_facts().values()).outcome == predict_run(steps, predicted)


@given(runs(), JOB_NEEDS, st.integers(0, 2**32), st.integers(0, 40), st.booleans(), st.booleans())
def test_a_run_that_is_canceled_at_any_time_ends_with_its_final_steps(
    steps: list[ModelStep], job_need: str, seed: int, events: int, cancels_steps: bool, stops_elements: bool
) -> None:
    driver = Driver(steps, Random(seed), job_need=job_need, has_leftovers=seed % 2 == 0)
    for _ in range(events):
        driver.take_step()
        if cancels_steps and driver.order.random() < 0.1:
            driver.cancel_step()
        if stops_elements and driver.order.random() < 0.1:
            driver.stop_element()
    is_over = bool(judge_run(driver.read_facts().values()).outcome)
    driver.cancel_run()
    driver.is_job_need_known = driver.is_job_need_known or driver.order.random() < 0.5
    driver.decide()
    driver.finish()

    driver.check_ended()
    driver.check_causes()
    if not is_over:
        ends = set(driver.read_ends().values())
        assert FAILED in ends or ends & {"canceled-before-begin", "canceled-while-running"} or not driver.list_events()


@given(runs(), st.integers(0, 2**32), st.integers(0, 40))
def test_repeated_reports_and_restarts_change_nothing(steps: list[ModelStep], seed: int, events: int) -> None:
    driver = Driver(steps, Random(seed))
    for _ in range(events):
        driver.take_step()

    again = decide_steps(driver.job, driver.read_facts(), {}, driver.now_ns, driver.evaluate)

    assert again == []
