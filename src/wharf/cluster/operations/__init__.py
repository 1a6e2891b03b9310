"""Operations: pure functions that turn a request, a timer or a revert into one write, or refuse it.

They map (snapshot, request, context) to a `Decision`. They never wait, read a clock or generate an id: the
`DecisionContext` carries the time and the new ids.
"""
