"""Runs each `async def` test of engines in a separate event loop, with a time limit."""

import asyncio
import inspect

import pytest

WITHIN_S = 60.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test in a new event loop."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run_with_timeout() -> None:
        async with asyncio.timeout(WITHIN_S):
            await test(**arguments)

    asyncio.run(run_with_timeout())
    return True
