"""Modules that installed driver plugins import under their former names."""

from wharf.node.drivers import beside, port


def test_the_types_of_commands_beside_a_task_are_found_in_their_former_module() -> None:
    assert (beside.Command, beside.CommandOrder, beside.RunsBeside) == (
        port.Command,
        port.CommandOrder,
        port.CommandDriver,
    )
