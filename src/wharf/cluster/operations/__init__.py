"""What a request, a timer or a revert does to records: (snapshot, request, moment) -> write, or a refusal.

Pure: nothing here waits, reads a clock or makes an id; the moment brings both.
"""
