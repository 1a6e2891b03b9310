"""Options of `sbatch`: how they are read, and what each becomes in the job. Pure."""

from typing import Any

import pytest

from wharf.cli.slurm.directives import find_srun_lines, read_directives
from wharf.cli.slurm.option_parser import OptionValue, SlurmOption, SlurmOptionError, parse_options
from wharf.cli.slurm.sbatch_options import LOCAL, REFUSED, SBATCH_OPTIONS, TRANSLATED, WITHOUT_EFFECT
from wharf.cli.slurm.translation import _READERS, VARIABLES, Submitter, TranslatedScript, TranslationErrors, translate
from wharf.contract.client.batch.job_builder import Script, build_batch_job
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import SECOND

MINUTE = 60 * SECOND
SUBMITTER = Submitter(job_id="4711", user="mia", host="login1", environment={"PROJECT": "x"}, driver="raw_exec")


def submit(lines: str, *words: str, arguments: tuple[str, ...] = ()) -> TranslatedScript:
    """Translate a script with these `#SBATCH` lines, and the words of a command line."""
    text = "#!/bin/sh\n" + "".join(f"#SBATCH {line}\n" for line in lines.splitlines()) + "true\n"
    directives = read_directives(text, "a.sh")
    assert directives.errors == ()
    options, _, _ = parse_options(words, SBATCH_OPTIONS)
    return translate((*directives.occurrences, *options), SUBMITTER, Script("a.sh", text), arguments)


def read_path(job: Any, path: str) -> Any:
    """Return a part of the job, such as `Task.Resources.Cores`."""
    group = job["TaskGroups"][0]
    first, *names = path.split(".")
    value = {"Job": job, "Group": group, "Task": group["Tasks"][0]}[first]
    for name in names:
        value = value.get(name) if isinstance(value, dict) else value
    return value


GPU_A100 = {
    "Name": "gpu",
    "Count": 2,
    "Constraints": [{"LTarget": "${device.model}", "Operand": "regexp", "RTarget": "(?i)a100"}],
}


@pytest.mark.parametrize(
    ("lines", "path", "expected"),
    [
        ("--job-name=train", "Job.Name", "train"),
        ("-J 'my train'", "Job.Name", "my-train"),
        ("", "Job.Name", "a.sh"),
        ("--array=0-9", "Group.Array", {"Size": 10}),
        ("-a 0-499%20", "Group.Array", {"Size": 500, "MaxRunning": 20}),
        ("--array=2-6:2", "Group.Array", {"Items": ["2", "4", "6"]}),
        ("--time=90", "Group.MaxRunDuration", 90 * MINUTE),
        ("-t 1:30", "Group.MaxRunDuration", 90 * SECOND),
        ("-t 2:00:00", "Group.MaxRunDuration", 120 * MINUTE),
        ("-t 1-12", "Group.MaxRunDuration", 36 * 60 * MINUTE),
        ("-t 1-12:30", "Group.MaxRunDuration", (36 * 60 + 30) * MINUTE),
        ("-t 1-0:0:5", "Group.MaxRunDuration", 24 * 60 * MINUTE + 5 * SECOND),
        ("-t UNLIMITED", "Group.MaxRunDuration", None),
        ("--mem=4G", "Task.Resources.MemoryMB", 4_096),
        ("--mem=4096", "Task.Resources.MemoryMB", 4_096),
        ("--mem-per-cpu=2G\n-c 4", "Task.Resources", {"Cores": 4, "MemoryMB": 8_192}),
        ("--mem-per-gpu=8G\n--gpus=2", "Task.Resources.MemoryMB", 16_384),
        ("", "Task.Resources", {"Cores": 1, "MemoryMB": 1_024}),
        ("-c 4", "Task.Resources.Cores", 4),
        ("-c4", "Task.Resources.Cores", 4),
        ("-n 3 -c 2", "Task.Resources.Cores", 6),
        ("--ntasks-per-node=3", "Task.Resources.Cores", 3),
        ("-N 1", "Task.Resources.Cores", 1),
        ("-p gpu", "Job.NodePool", "gpu"),
        ("--gres=gpu:2", "Task.Resources.Devices", [{"Name": "gpu", "Count": 2}]),
        ("--gres=gpu:a100:2", "Task.Resources.Devices", [GPU_A100]),
        ("--gres=fpga", "Task.Resources.Devices", [{"Name": "fpga", "Count": 1}]),
        ("--gpus=a100:2", "Task.Resources.Devices", [GPU_A100]),
        ("-G 1", "Task.Resources.Devices", [{"Name": "gpu", "Count": 1}]),
        ("--gpus-per-node=1", "Task.Resources.Devices", [{"Name": "gpu", "Count": 1}]),
        ("--gpus-per-task=2 -n 2", "Task.Resources.Devices", [{"Name": "gpu", "Count": 4}]),
        ("--constraint='avx512&ib'", "Job.Constraints", [
            {"LTarget": "${meta.features}", "Operand": "set_contains_all", "RTarget": "avx512,ib"}
        ]),
        ("-C 'a100|h100'", "Job.Constraints", [
            {"LTarget": "${meta.features}", "Operand": "set_contains_any", "RTarget": "a100,h100"}
        ]),
        ("-w gpu-7", "Job.Constraints", [{"LTarget": "${node.unique.name}", "Operand": "=", "RTarget": "gpu-7"}]),
        ("-x n[08-09],m", "Job.Constraints", [
            {"LTarget": "${node.unique.name}", "Operand": "!=", "RTarget": name} for name in ("n08", "n09", "m")
        ]),
        ("--nice=100", "Job.Priority", 40),
        ("--nice", "Job.Priority", 40),
        ("--nice=-50", "Job.Priority", 55),
        ("--nice=10000", "Job.Priority", 1),
        ("--account=bio", "Job.Meta", {"submit_user": "mia", "account": "bio"}),
        ("-q long", "Job.Meta.qos", "long"),
        ("--comment='night run'", "Job.UI", {"Description": "night run"}),
        ("-D /data/x", "Task.Config.work_dir", "/data/x"),
        ("--tmp=2G", "Group.EphemeralDisk", {"SizeMB": 2_048}),
        ("--no-requeue", "Group.Disconnect", {"Replace": False}),
        ("--requeue", "Group.Disconnect", None),
        ("--export=A=1,PROJECT,NONE", "Task.Env.PROJECT", "x"),
        ("--export=A='${HOME}'", "Task.Env.A", "$${HOME}"),
        ("-t 60", "Task.KillSignal", "SIGTERM"),
        ("-t 60", "Task.KillTimeout", 30 * SECOND),
        ("-t 60 --signal=B:USR1@300", "Group.MaxRunDuration", 55 * MINUTE),
        ("-t 60 --signal=10", "Task.KillSignal", "SIGUSR1"),
        ("-t 60 --signal=SIGINT@20", "Task.KillTimeout", 20 * SECOND),
        ("-d afterok:1:2,afternotok:3,afterany:4", "Job.Depends", [
            {"On": "1", "When": "succeeded"}, {"On": "2", "When": "succeeded"},
            {"On": "3", "When": "failed"}, {"On": "4", "When": "any"},
        ]),
        ("-d singleton -J train", "Group.Lock", {"Key": "singleton/mia/train"}),
        ("-d afterany:4,singleton", "Job.Depends", [{"On": "4", "When": "any"}]),
        ("-d afterany:4,singleton", "Group.Lock", {"Key": "singleton/mia/a.sh"}),
        ("--begin=now --mail-type=END --hint=nomultithread", "Job.Type", "batch"),
    ],
)  # fmt: skip
def test_each_option_becomes_a_part_of_the_job(lines: str, path: str, expected: object) -> None:
    job = build_batch_job(submit(lines).request)

    assert read_path(job, path) == expected
    convert_object(Job, job)


@pytest.mark.parametrize(
    ("lines", "file", "errors"),
    [
        ("-o out.txt", "out.txt", None),
        ("-o slurm-%j.out", "slurm-${WHARF_JOB_ID}.out", None),
        ("-o %x-%A_%a.out --array=0-3", "${WHARF_JOB_NAME}-${WHARF_JOB_ID}_${WHARF_ARRAY_INDEX}.out", None),
        ("-o %A_%4a.out --array=1-3", "${WHARF_JOB_ID}_${WHARF_ARRAY_ITEM}.out", None),
        ("-o %j --array=0-3", "${WHARF_JOB_ID}_${WHARF_ARRAY_INDEX}", None),
        ("-o 100%% -e %N.%u.err", "100%", "${node.unique.name}.mia.err"),
    ],
)
def test_patterns_in_names_of_output_files(lines: str, file: str, errors: str | None) -> None:
    request = submit(lines).request

    assert (request.output_file, request.error_file) == (file, errors or "")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("--begin=16:00", "a.sh:2: --begin=16:00: not supported: a job begins as soon as it can"),
        ("--dependency=after:1", "a.sh:2: --dependency=after:1: not supported: a job waits for the end of others"),
        ("-d aftercorr:1", "a.sh:2: -d aftercorr:1: not supported: elements wait for elements only between steps"),
        (
            "-d singleton:4",
            "-d singleton:4: expected afterok, afternotok, afterany with jobs, such as afterok:1:2, or the word singleton",
        ),
        ("-d 'singleton?afterok:1'", "not for any of them: write a comma"),
        ("-d singleton --array=0-3", "--dependency=singleton and --array exclude each other"),
        ("-d singleton --no-requeue", "--no-requeue and --dependency exclude each other"),
        (f"-d singleton -J {'n' * 120}", "has 134 bytes, and at most 128 are possible: use a shorter --job-name"),
        ("-d expand:1", "not supported: a job cannot grow"),
        ("-d afterburstbuffer:1", "not supported: there are no burst buffers"),
        (
            "-d afterok:1?afterok:2",
            "not supported: a job waits for all that it names, not for any of them: write a comma",
        ),
        ("-d afterok", "afterok names no job: write its ID, such as afterok:1"),
        ("-d afterok:1:", "afterok names no job"),
        ("-d 17", "expected afterok, afternotok, afterany with jobs, such as afterok:1:2"),
        ("-d afterok:1_3", "not supported: 1_3 is an element of an array: name the whole job"),
        ("-d afterok:1,afterany:1", "the job 1 is named twice: remove one"),
        ("-d afterok:1 --no-requeue", "--no-requeue and --dependency exclude each other"),
        ("--exclusive", "a.sh:2: --exclusive: not supported: a job cannot reserve a whole node"),
        ("--deadline=2027-01-01", "use --time"),
        ("-N 2", "a script runs on one node: write a job file"),
        ("-w n[1-2]", "a script runs on one node: name one"),
        ("-p a,b", "a job has one node pool"),
        ("--mem=0", "cannot reserve all memory of a node"),
        ("--mem=lots", "expected an amount of memory"),
        ("--mem=1G --mem-per-cpu=1G", "exclude each other"),
        ("--mem-per-gpu=1G", "--mem-per-gpu needs --gpus"),
        ("--array=0-1 --no-requeue", "--no-requeue and --array exclude each other"),
        ("-t soon", "expected a time such as"),
        ("--signal=USR1", "--signal needs --time"),
        ("-t 1 --signal=USR1@90", "sent before the job begins"),
        ("-t 1 --signal=NONE", "unknown signal NONE"),
        ("--gres=gpu:a:b:1", "expected devices such as"),
        ("-C '[a*2&b]'", "expected features"),
        ("-c 0", "expected a number from 1"),
        ("-D work", "expected an absolute path"),
        ("--export=MISSING", "your shell has no variable MISSING"),
        ("-o %z", "unknown part %z"),
        ("-x n[1-1000]", "lists more than 100 nodes"),
        ("--array=9-1", "range 9-1 ends before it begins"),
        ("--priority=9", "use --nice"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_its_line(lines: str, expected: str) -> None:
    with pytest.raises(TranslationErrors) as refusal:
        submit(lines)

    assert expected in str(refusal.value)


def test_all_refusals_are_reported_together() -> None:
    with pytest.raises(TranslationErrors) as refusal:
        submit("--hold\n--mem=1G\n--begin=tomorrow\n-t soon")

    assert [line.split(": ")[0] for line in str(refusal.value).splitlines()] == ["a.sh:2", "a.sh:4", "a.sh:5"]


def test_the_command_line_overrides_the_script() -> None:
    submission = submit("--time=10 -J script --mem=1G", "--time=20", "--parsable", "-Wc2")

    assert (submission.request.time_ns, submission.request.name, submission.request.cores) == (20 * MINUTE, "script", 2)
    assert submission.flags == {"parsable", "wait"}
    assert "--time=20: ends after 20m0s" in submission.notes


def test_each_option_has_a_note_with_its_place_and_what_it_became() -> None:
    notes = submit("--mem=2G\n--array=1-4%2\n--mail-user=mia@example.org").notes

    assert notes == (
        "a.sh:2: --mem=2G: 2,048 MiB of memory",
        "a.sh:3: --array=1-4%2: an array of 4 elements, at most 2 at a time; SLURM_ARRAY_TASK_ID is the item of an element",
        "a.sh:4: --mail-user=mia@example.org: no effect: no mail is sent",
    )


def test_scripts_find_the_variables_of_slurm() -> None:
    env = submit("--array=1-7:2 -n 2 -c 3 -A bio --export=SLURM_JOB_NAME=mine").request.node_env

    assert env["SLURM_ARRAY_TASK_ID"] == "${WHARF_ARRAY_ITEM}"
    assert [env[f"SLURM_ARRAY_TASK_{name}"] for name in ("COUNT", "MIN", "MAX", "STEP")] == ["4", "1", "7", "2"]
    assert (env["SLURM_JOB_ID"], env["SLURM_ARRAY_JOB_ID"]) == (
        "${WHARF_JOB_ID}_${WHARF_ARRAY_ITEM}",
        "${WHARF_JOB_ID}",
    )
    assert (env["SLURM_NTASKS"], env["SLURM_CPUS_PER_TASK"], env["SLURM_CPUS_ON_NODE"]) == ("2", "3", "6")
    assert set(VARIABLES) == set(env)


def test_a_directory_of_its_own_is_the_place_of_submission_unless_another_is_given() -> None:
    assert submit("").request.node_env["SLURM_SUBMIT_DIR"] == "${WHARF_TASK_DIR}"
    assert submit("-D /home/mia").request.node_env["SLURM_SUBMIT_DIR"] == "/home/mia"


def test_directives_end_at_the_first_command() -> None:
    text = "#!/bin/sh\n# text\n#SBATCH -c 2 # cores\n\n##SBATCH -c 3\n#SBATCHER\ntrue\n#SBATCH -c 4\n"

    directives = read_directives(text, "a.sh")

    assert [(each.name, each.value, each.place) for each in directives.occurrences] == [
        ("cpus-per-task", "2", "a.sh:3")
    ]
    assert directives.notes == (
        "a.sh:8: a #SBATCH line after the first command has no effect, as in Slurm: move it up",
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--memm=1G", "a.sh:2: unknown option --memm; did you mean --mem?"),
        ("--mem", "a.sh:2: --mem needs a value"),
        ("--parsable=1", "a.sh:2: --parsable has no value"),
        ("-c", "a.sh:2: -c needs a value"),
        ("-Y", "a.sh:2: unknown option -Y"),
        ("-J 'open", "a.sh:2: no closing quotation"),
        ("-c 2 4", "a.sh:2: 4 is no option"),
        ("--nod=1", "a.sh:2: --nod may be --nodelist, --nodes"),
    ],
)
def test_a_line_that_is_no_option_is_an_error_with_its_place(line: str, expected: str) -> None:
    (error,) = read_directives(f"#!/bin/sh\n#SBATCH {line}\n", "a.sh").errors

    assert error.startswith(expected)


def test_directives_of_other_schedulers_and_calls_of_srun_are_noticed() -> None:
    assert "another scheduler" in read_directives("#!/bin/sh\n#PBS -l x\n", "a.sh").notes[0]
    assert list(find_srun_lines("#!/bin/sh\n  srun -n 2 x\nsrunner\nsrun y\n")) == [2, 4]


def test_options_are_read_as_slurm_reads_them() -> None:
    options = (
        SlurmOption("name", "n"),
        SlurmOption("flag", "f", OptionValue.NONE),
        SlurmOption("maybe", "m", OptionValue.OPTIONAL),
    )
    words = ("-fn", "x", "--na=y", "--maybe", "-m3", "--address", "z", "script", "-f")

    found, others, arguments = parse_options(words, options, foreign=lambda word: 2 * (word == "--address"))

    assert [(each.name, each.value) for each in found] == [
        ("flag", ""), ("name", "x"), ("name", "y"), ("maybe", ""), ("maybe", "3"),
    ]  # fmt: skip
    assert (others, arguments) == (["--address", "z"], ["script", "-f"])
    with pytest.raises(SlurmOptionError, match="unknown option --other"):
        parse_options(("--other",), options)


def test_every_known_option_has_one_treatment() -> None:
    names = [option.name for option in SBATCH_OPTIONS]
    letters = [option.letter for option in SBATCH_OPTIONS if option.letter]

    assert len(set(names)) == len(names)
    assert len(set(letters)) == len(letters)
    assert {option.name for option in TRANSLATED} == set(_READERS)
    assert len(_READERS) >= 30
    assert set(names) == set(_READERS) | {option.name for option in LOCAL} | set(WITHOUT_EFFECT) | set(REFUSED)
