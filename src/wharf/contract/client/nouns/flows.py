"""Client methods for flows and their runs."""

import datetime
from collections.abc import Sequence
from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.jobs.run_views import FlowStub, RunStub, RunView
from wharf.contract.wire.flows import (
    FlowBackfillRequest,
    FlowBackfillResponse,
    GateAnswerRequest,
    RunCancelRequest,
    RunChangeResponse,
    RunRetryRequest,
    RunRetryResponse,
)


class FlowMethods(MethodGroup[M]):
    """The methods of `client.flows`. Each describes a call, which the client then sends."""

    @list_method("flow.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[FlowStub]:
        """List flows: periodic and parameterized jobs whose launches are runs."""
        return ListSpec(options)

    @list_method("flow.runs")
    def list_runs(
        self, *, flow: str = "", state: str = "", sort: str = "", **options: Unpack[ListOptions]
    ) -> ListSpec[RunStub]:
        """List runs: jobs with steps. `flow`: only the runs of the flow with this ID.

        `state`: only runs in this state, such as `failed`, `gated` (a step waits for approval) or `active` (not ended).
        `sort`: `newest` lists the run first that began last, `changed` the run that changed last.
        """
        return ListSpec(options, flow=flow, state=state, sort=sort)

    @read_method("flow.run")
    def read_run(self, job_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[RunView]:
        """Read the steps of a run: their layers and states, and what each waits for or ended with."""
        return ReadSpec(options, job_id)

    @call_method("flow.cancel")
    def cancel(
        self, job_id: str, *, text: str = "", at_once: bool = False, **options: Unpack[WriteOptions]
    ) -> CallSpec[RunChangeResponse]:
        """Cancel a run. A second cancellation, or `at_once`, stops its final steps too. `text`: why."""
        return CallSpec(options, job_id, body=RunCancelRequest(text=text, at_once=at_once))

    @call_method("flow.answer")
    def answer(
        self, job_id: str, step: str, answer: str, *, text: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[RunChangeResponse]:
        """Answer the gate of a step: `answer` is approve or reject. `text`: why."""
        return CallSpec(options, job_id, body=GateAnswerRequest(step=step, answer=answer, text=text))

    @call_method("flow.retry")
    def retry(
        self, job_id: str, *, steps: Sequence[str] = (), plan: bool = False, **options: Unpack[WriteOptions]
    ) -> CallSpec[RunRetryResponse]:
        """Run steps of a run again, and all that follow them. Without `steps`: those that failed or were canceled.

        `plan`: only return what would run again.
        """
        return CallSpec(options, job_id, body=RunRetryRequest(steps=tuple(steps), plan=plan))

    @call_method("flow.backfill")
    def backfill(
        self,
        job_id: str,
        begin: datetime.datetime,
        end: datetime.datetime,
        *,
        max_runs: int = 0,
        plan: bool = False,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[FlowBackfillResponse]:
        """Launch the runs of past slots of a flow's schedule, from `begin` on and before `end`, each slot once.

        `max_runs`: how many runs are created at most; 0: 50. `plan`: only return the slots.
        """
        return CallSpec(options, job_id, body=FlowBackfillRequest(begin=begin, end=end, max=max_runs, plan=plan))
