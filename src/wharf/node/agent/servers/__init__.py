"""The node agent's side of the server API: registration, heartbeats, assignments, reports, events and identity."""
