"""Endpoints of evaluations."""

from typing import Final

from wharf.api.answers import Act, Reading, one_of_a_namespace
from wharf.api.listing import Listing, by_creation_or_prefix
from wharf.api.request import ReadOptions, Request
from wharf.model.evaluation import Evaluation
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state.tables import EVALUATIONS

PREFIX_FAILED: Final = "eval lookup failed: index error: "


def evaluation_list(replica: Replica, _request: Request, options: ReadOptions) -> Listing[Evaluation]:
    return by_creation_or_prefix(replica, EVALUATIONS, options, where=PREFIX_FAILED)


def evaluation_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    return one_of_a_namespace(replica, request, EVALUATIONS, request.value("eval_id"), missing="eval not found")


READS: Final[dict[str, Reading]] = {"evaluation.list": evaluation_list, "evaluation.read": evaluation_read}


def acts_of(_server: Server) -> dict[str, Act]:
    return {}
