"""What each endpoint does: one room a noun, as in `wharf.contract.wire.endpoint_table`, where they are declared. `wharf.cluster.api.handler_table`
joins them. What all requests have in common stands beside this package."""
