"""The command `lakewarden demo`."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lakewarden.agent.cli.output import print_line, print_lines
from lakewarden.agent.errors import AgentError
from lakewarden.agent.settings import Settings
from lakewarden.agent.variables import refuse_unknown_variables


class FormatChoice(StrEnum):
    """The format of the demo's tables."""

    PAIMON = "paimon"
    DELTA = "delta"
    HUDI = "hudi"
    ICEBERG = "iceberg"


def demo_command(
    *,
    days: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=365,
            help="Number of days of flights to write; a day has about 920 flights.",
        ),
    ] = 40,
    form: Annotated[
        FormatChoice,
        typer.Option(
            "--format",
            help="Format of the tables. Hudi needs PySpark 3.5; Spark downloads their jars from Maven Central.",
        ),
    ] = FormatChoice.PAIMON,
    without_agent: Annotated[
        bool,
        typer.Option(
            "--without-agent",
            help="Run the same two queries without an agent, and print how many rows are lost.",
        ),
    ] = False,
    primary_key: Annotated[
        bool,
        typer.Option(
            "--primary-key",
            help="Write Paimon tables with a primary key, and run a compactor with the queries. Upserts add files, which Paimon "
            "merges: they wait for their turn, and lose no conflict. Spark downloads Java Paimon from Maven Central.",
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Keep feeds, table, checkpoints and logs in a new folder below DIR. By default they are deleted.",
        ),
    ] = None,
    picture: Annotated[
        Path,
        typer.Option(metavar="PATH", dir_okay=False, help="File for a picture of the run, as SVG."),
    ] = Path("lakewarden-demo.svg"),
) -> None:
    """Run two Spark streaming queries that collide on one table, and verify that no row is lost.

    The queries write the same flights twice, to two tables: once with optimistic admission, once with the default, auto.
    The demo starts Kafka, an agent and Spark on this machine, and stops them at the end. It needs a JDK 17 or newer, but no
    Docker. The queries write the flights that left New York in 2013. At the end, the demo compares both
    tables with these flights row by row.

    Exit codes: 0 every row is present exactly once and correct, or the run with --without-agent has ended; 1 a row is missing
    or wrong, or the run failed; 2 usage error; 130 interrupted by Ctrl-C.
    """
    if form is not FormatChoice.PAIMON and (without_agent or primary_key):
        option = "--without-agent" if without_agent else "--primary-key"
        raise typer.BadParameter(f"only with --format paimon, not {form.value}", param_hint=option)
    if without_agent and primary_key:
        raise typer.BadParameter("not with --without-agent", param_hint="--primary-key")
    refuse_unknown_variables(os.environ, Settings.model_fields)
    try:
        # Imported here so that `lakewarden --help` works without the demo's dependencies.
        from lakewarden.agent.demo.contest import report_lines
        from lakewarden.agent.demo.run import DemoSettings, run_demo
    except ImportError as error:
        raise AgentError(f"{error.name} is not installed; run pip install 'lakewarden[demo]'") from error
    settings = DemoSettings(
        days=days,
        form=form.value,
        without_agent=without_agent,
        primary_key=primary_key,
        data=data,
        picture=picture.resolve(),
    )
    result = run_demo(settings, print_line)
    print_lines(["", *report_lines(result.contests, result.seconds)])
    print_lines(f"note: {note}" for note in result.notes)
    print_line(f"picture: {settings.picture}")
    if result.kept is not None:
        print_line(f"tables, checkpoints and logs: {result.kept}")
    if not (without_agent or result.clean):
        raise typer.Exit(1)
