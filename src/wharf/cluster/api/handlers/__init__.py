"""Handlers of all endpoints, one module for each noun of `wharf.contract.wire.endpoint_table`.

`wharf.cluster.api.handler_table` collects them. Code that all requests share is in the packages beside this one.
"""
