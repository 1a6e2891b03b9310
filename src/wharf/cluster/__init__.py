"""The cluster: state, log engines, access control, scheduling, operations, controllers, server and API."""
