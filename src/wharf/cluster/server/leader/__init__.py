"""What a leader does, by room: `term` writes as leader, `agenda` knows what is to be done, `thinking` does it one after
the other, `applier` makes plans true, `node_care` hears nodes and gives up silent ones, `watching` looks after what
changes on its own.

`server.brain` wires them, is elected, leads and loses. What people ask of the leader is in `server.answering`.
"""
