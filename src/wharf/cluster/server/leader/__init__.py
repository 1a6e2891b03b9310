"""The leader's work.

`term` writes as leader, `queues` holds what is to be done, `loop` does it in order of urgency, `evaluation_processor`
commits plans, `pre_planning` plans ahead, `node_monitor` handles heartbeats and reports. `server.brain` wires them;
RPC handlers are in `server.rpc`.
"""
