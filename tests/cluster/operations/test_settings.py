"""Operations take every setting from their caller, so that a configured value is never replaced by a default."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

from wharf.cluster import controllers, operations, scheduling
from wharf.contract import model
from wharf.contract.model.jobs.defaults import JobSettings

SETTING_TYPE = re.compile(r"\b\w+(Settings|Limits)\b")
SETTING_NAME = re.compile(r"(max|min)_\w+|\w+_(ttl|retention|interval|deadline)(_\w+)?|versions_kept|settings|limits")


def iterate_modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(info.name)


def iterate_functions(module: ModuleType) -> Iterator[Callable[..., Any]]:
    """Yield the functions of a module and the methods of its classes, without the constructors of records."""
    for found in vars(module).values():
        if getattr(found, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(found):
            yield found
        elif inspect.isclass(found):
            yield from (method for method in vars(found).values() if inspect.isfunction(method))


def list_defaulted_settings(function: Callable[..., Any]) -> list[str]:
    """Return the parameters of the function that are settings by their type or name and have a default."""
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is not parameter.empty
        and (SETTING_TYPE.search(str(parameter.annotation)) or SETTING_NAME.fullmatch(parameter.name))
    ]


def iterate_records(module: ModuleType) -> Iterator[type[msgspec.Struct]]:
    """Yield the types of records that a module defines."""
    for found in vars(module).values():
        if inspect.isclass(found) and issubclass(found, msgspec.Struct) and found.__module__ == module.__name__:
            yield found


def list_defaulted_fields(record: type[msgspec.Struct]) -> list[str]:
    """Return the fields of the record that are settings and have a default; of a record of settings, all with a default."""
    if not SETTING_TYPE.fullmatch(record.__name__):
        return list_defaulted_settings(record)
    return [field.name for field in msgspec.structs.fields(record) if not field.required]


@pytest.mark.parametrize("package", [operations, controllers, scheduling, model], ids=lambda package: package.__name__)
def test_no_function_that_decides_has_a_default_for_a_setting(package: ModuleType) -> None:
    defaulted = {
        f"{module.__name__}.{function.__qualname__}": names
        for module in iterate_modules(package)
        for function in iterate_functions(module)
        if (names := list_defaulted_settings(function))
    }

    assert defaulted == {}


@pytest.mark.parametrize("package", [operations, controllers, scheduling], ids=lambda package: package.__name__)
def test_no_record_of_the_packages_that_decide_has_a_default_for_a_setting(package: ModuleType) -> None:
    defaulted = {
        f"{module.__name__}.{record.__qualname__}": names
        for module in iterate_modules(package)
        for record in iterate_records(module)
        if (names := list_defaulted_fields(record))
    }

    assert defaulted == {}


def test_the_settings_of_jobs_have_no_defaults() -> None:
    assert list_defaulted_fields(JobSettings) == []
