"""The search for a field of a job file by a path in the names of HCL or of the API."""

import pytest

from wharf.job_files.schema import MAX_PATH_PARTS, find_fields, iterate_fields

MEMORY = ("TaskGroups", "Tasks", "Resources", "MemoryMB")


@pytest.mark.parametrize(
    "path",
    [
        "group.task.resources.memory",
        "job.group.task.resources.memory",
        "TaskGroups.Tasks.Resources.MemoryMB",
        "taskgroups.tasks.resources.memorymb",
        "task_groups.tasks.resources.memory_mb",
        "TaskGroup.Task.Resources.MemoryMB",
        "resources.memory",
        "Resources.MemoryMB",
        "memory",
        "group.memory",
    ],
)
def test_a_field_is_found_by_all_its_names_and_without_outer_blocks(path: str) -> None:
    search = find_fields(path)

    assert search.fields[0].path == MEMORY
    assert search.skipped_name == ""


def test_the_empty_path_is_the_job() -> None:
    assert find_fields("").fields[0].block_name == "Job"
    assert find_fields("job").fields[0].block_name == "Job"


def test_the_place_nearest_to_the_job_comes_first() -> None:
    assert [field.path for field in find_fields("update").fields] == [("Update",), ("TaskGroups", "Update")]


def test_the_options_of_a_driver_are_found_by_the_name_of_the_driver() -> None:
    assert find_fields("docker.image").fields[0].path == ("TaskGroups", "Tasks", "Config", "docker", "image")
    assert find_fields("docker.mount.target").fields[0].path[-3:] == ("docker", "mount", "target")
    assert find_fields("raw_exec.command").fields[0].path[-2:] == ("raw_exec", "command")


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("gruop.count", "group.count"),
        ("group.cuont", "group.count"),
        ("TaskGroups.Tasks.Resorces.CPU", "TaskGroups.Tasks.Resources.CPU".lower()),
        ("docker.imge", "docker.image"),
        ("qqqqqqqq", ""),
    ],
)
def test_an_unknown_path_gets_a_similar_one_as_suggestion(path: str, suggestion: str) -> None:
    search = find_fields(path)

    assert search.fields == ()
    assert search.suggestion.lower() == suggestion


def test_a_path_may_begin_with_the_name_of_a_group_of_the_user() -> None:
    search = find_fields("web.resources")

    assert search.fields[0].path == MEMORY[:-1]
    assert search.skipped_name == "web"


def test_every_field_is_found_by_its_full_path_in_both_spellings() -> None:
    fields = [
        field for field in iterate_fields() if 1 <= len(field.path) <= 3
    ]  # Deeper paths consist of the same names.
    paths = {(names, field.path) for field in fields for names in (field.path, field.hcl_path[1:])}
    lost = [names for names, path in paths if path not in {each.path for each in find_fields(".".join(names)).fields}]

    assert lost == []
    assert len(paths) > 200


def test_a_path_with_too_many_parts_is_not_searched() -> None:
    assert find_fields(".".join(["group"] * (MAX_PATH_PARTS + 1))).fields == ()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("TaskGroups[0].Tasks[0].Resources.MemoryMB", MEMORY),
        ('job "web" > group "api" > task "main" > resources > memory', MEMORY),
        ('group "api"', ("TaskGroups",)),
        ("Job.TaskGroups[1].Count", ("TaskGroups", "Count")),
        ("TaskGroups[0].Tasks[0].Config.image", ("TaskGroups", "Tasks", "Config", "docker", "image")),
        ("group.task.config.mount[0].source", ("TaskGroups", "Tasks", "Config", "docker", "mount", "source")),
        ("Meta[a.b]", ("Meta",)),
        ("group.task.env.PORT", ("TaskGroups", "Tasks", "Env")),
        ("Volumes.data.Source", ("TaskGroups", "Volumes", "Source")),
        ("variable", ("variables",)),
        ("variable.validation", ("variables", "validation")),
        ("variables.image.validation.condition", ("variables", "validation", "condition")),
        ("locals.name", ("locals",)),
    ],
)
def test_the_paths_of_messages_are_found(path: str, expected: tuple[str, ...]) -> None:
    assert find_fields(path).fields[0].path == expected


def test_the_declarations_of_a_file_are_not_inside_of_the_job() -> None:
    assert find_fields("variable.default").fields[0].hcl_path == ("the file", "variable", "default")
    assert find_fields("locals").fields[0].hcl_path == ("the file", "locals")
