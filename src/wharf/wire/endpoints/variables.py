"""Endpoints of variables and their locks."""

from typing import Final

from wharf.model import need
from wharf.model.variable import Variable
from wharf.wire import variables as shapes
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Lists, reads, text, writes

LISTED: Final = Lists(record=Variable, hidden=frozenset({"Data", "KeyID", "LockRefusedUntil", "Lock"}), reverses=False)
CAS: Final = text("cas", "Only over this ModifyIndex; 0: only where nothing is.")

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "variable.list", "/v1/vars", need=need.ANY_TOKEN,
        summary="List the variables that the caller may list, without their items.", lists=LISTED,
        returns=list[shapes.VariableShown],
    ),
    reads(
        "variable.read", "/v1/var/{path...}", need=need.READ_VARIABLE, label="path", summary="Read a variable.",
        returns=shapes.VariableShown,
    ),
    writes(
        "variable.put", "/v1/var/{path...}", need=need.WRITE_VARIABLE, decides=Decides.OBJECT,
        summary="Write a variable, or take, renew and give back its lock.",
        body=shapes.VariableRequest, returns=shapes.VariableShown,
        parameters=(
            CAS,
            text("lock-acquire", "Given: take the lock too."),
            text("lock-renew", "Given: the holder is alive; nothing is written."),
            text("lock-release", "Given: give the lock back."),
        ),
    ),
    writes(
        "variable.delete", "/v1/var/{path...}", method="DELETE", need=need.DESTROY_VARIABLE, label="path",
        summary="Delete a variable.", parameters=(CAS,), answers=(204,),
    ),
)  # fmt: skip
