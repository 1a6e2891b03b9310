"""Commands for operators of a cluster: `wharf operator …`."""
