"""The node's side of the node channel: one websocket to a server, through which requests reach the node."""
