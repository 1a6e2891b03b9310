"""The caller's side of the gateway: reads requests from a connection and writes the replies to it."""
