"""The memory store in the contract tests, with compiled counters."""

from tests.limits.compiled_counters import build_usual_calls
from tests.limits.stores.kind_memory import MemoryKind

KIND = MemoryKind("memory-compiled", ("gcc",), build_usual_calls)
