"""What each endpoint does: one room a noun, as in `wharf.wire.endpoints`, where they are declared. `wharf.api.handlers`
joins them. What all requests have in common stands beside this package."""
