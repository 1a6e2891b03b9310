"""Requests to nodes, through the connection that each node keeps open to a server process."""
