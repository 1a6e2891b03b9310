"""Client methods for evaluations."""

from collections.abc import Sequence
from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.explanations import EvaluationExplanation
from wharf.contract.model.waiting_queue import JobQueue, QueueReasons
from wharf.contract.wire import evaluations


class EvaluationMethods(MethodGroup[M]):
    """The methods of `client.evaluations`. Each describes a call, which the client then sends."""

    @list_method("evaluation.list")
    def list(self, *, status: str = "", job: str = "", **options: Unpack[ListOptions]) -> ListSpec[Evaluation]:
        """List evaluations, optionally only those with this status or of the job with this ID."""
        return ListSpec(options, status=status, job=job)

    @read_method("evaluation.count")
    def count(self, **options: Unpack[ListOptions]) -> ReadSpec[evaluations.EvaluationCount]:
        """Count the evaluations that match the options."""
        return ReadSpec(options)

    @read_method("evaluation.queue")
    def queue(self, *, place: int = 1, limit: int = 0, **options: Unpack[ReadOptions]) -> ReadSpec[JobQueue]:
        """List the jobs that wait for capacity, in the order in which they are retried, from this place on.

        `limit`: how many places; 0 selects the server's default.
        """
        return ReadSpec(options, place=place, limit=limit or None)

    @read_method("evaluation.queue_reasons")
    def queue_reasons(self, **options: Unpack[ReadOptions]) -> ReadSpec[QueueReasons]:
        """Count the jobs that wait for capacity by their reasons."""
        return ReadSpec(options)

    @read_method("evaluation.read")
    def read(self, eval_id: str, *, related: bool = False, **options: Unpack[ReadOptions]) -> ReadSpec[Evaluation]:
        """Read the evaluation with this ID. `related`: include its chain of previous, next and blocked evaluations."""
        return ReadSpec(options, eval_id, related="true" if related else "")

    @read_method("evaluation.explain")
    def explain(self, eval_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[EvaluationExplanation]:
        """Explain why an evaluation was created, its outcome, and what it waits for."""
        return ReadSpec(options, eval_id)

    @list_method("evaluation.allocations")
    def allocations(self, eval_id: str, **options: Unpack[ReadOptions]) -> ListSpec[AllocationStub]:
        """List the allocations that an evaluation placed or last changed."""
        return ListSpec(options, eval_id)

    @call_method("evaluation.delete")
    def delete(
        self, eval_ids: Sequence[str] = (), *, filter: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[evaluations.EvaluationDeleteResponse]:
        """Delete evaluations by ID, or those that match a filter expression."""
        body = evaluations.EvaluationDeleteRequest(eval_ids=tuple(eval_ids) or None, filter=filter)
        return CallSpec(options, body=body)
