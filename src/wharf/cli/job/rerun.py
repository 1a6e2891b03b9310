"""`wharf job rerun`: runs elements of an array again."""

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import FollowOptions, follow_options, job_argument
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.job.change_report import ChangeReport
from wharf.cli.job.follower import follow_submission


@click.command(cls=ServerCommand)
@job_argument
@click.option("--failed", is_flag=True, help="Elements that failed or were canceled.")
@click.option("--index", "indexes", default="", help="Elements with these indexes, such as 3 or 3,7-9.")
@click.option("--group", default="", help="Only elements of this group.")
@follow_options
def rerun(
    session: Session,
    job_id: str,
    failed: bool,
    indexes: str,
    group: str,
    following: FollowOptions,
) -> None:
    """Run elements of an array again, in a new attempt.

    The results of earlier attempts remain readable. The elements run what the job has stored: later changes of a script
    that `wharf submit` sent do not count. To run a changed script for them, submit it with --array and their indexes. A
    stopped job starts again, but only with these elements.

    wharf job rerun sweep --failed

    wharf job rerun sweep --index 3,7-9
    """
    from wharf.cli.common.lookup import find_job

    if failed == bool(indexes):
        raise CliError("select elements either by --failed or by --index")
    found = find_job(session, job_id)
    response = session.client.jobs.rerun(
        found.id, failed=failed, indexes=indexes, group=group, namespace=found.namespace
    )
    report = ChangeReport(
        found.id,
        found.namespace,
        response.eval_id,
        response.job_modify_index,
        more={"Attempt": response.attempt, "ElementCount": response.element_count},
    )
    if not response.attempt:
        session.print_text(f"no element of {found.id} failed or was canceled; nothing to run again")
        report.print_result(session)
        return
    count = "1 element" if response.element_count == 1 else f"{response.element_count} elements"
    session.print_text(f"running {count} of {found.id} again, as attempt {response.attempt}")
    session.print_text(
        "they run the script or command that the job has stored; to run a changed script for them: "
        "`wharf submit --array INDEXES SCRIPT`"
    )
    follow_submission(session, report, following)
