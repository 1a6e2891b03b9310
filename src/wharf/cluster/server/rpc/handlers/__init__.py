"""Handlers of RPC methods on the leader's brain, one module per noun.

Each module declares its methods with their message types, and a class whose handlers run one operation and commit it
as leader. The rules are in `operations`.
"""
