"""The command `lakewarden demo`: options, errors and exit codes."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lakewarden.agent.demo.choices import DEFAULT_BUCKET, DEFAULT_DAYS, Admissions, DemoError, FormatChoice
from lakewarden.agent.settings import Settings
from lakewarden.agent.variables import refuse_unknown_variables


class ReportForm(StrEnum):
    """The format of the final report."""

    TEXT = "text"
    JSON = "json"


def demo_command(
    *,
    days: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=365,
            envvar="LAKEWARDEN_DEMO_DAYS",
            show_envvar=False,
            help="Number of days of flights to write; a day has about 920 flights.  [env: LAKEWARDEN_DEMO_DAYS]",
        ),
    ] = DEFAULT_DAYS,
    form: Annotated[
        FormatChoice,
        typer.Option(
            "--format",
            envvar="LAKEWARDEN_DEMO_FORMAT",
            show_envvar=False,
            help="Format of the tables. Hudi needs PySpark 3.5; Spark downloads their jars from Maven "
            "Central.  [env: LAKEWARDEN_DEMO_FORMAT]",
        ),
    ] = FormatChoice.PAIMON,
    admission: Annotated[
        Admissions,
        typer.Option(
            help="How the queries are admitted: optimistic (they conflict, and one is stopped), auto (one waits for the other), "
            "or a contest with each."
        ),
    ] = Admissions.BOTH,
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
            help="Write Paimon tables with a primary key, with a compactor beside the queries. Upserts add files, which Paimon "
            "merges: they wait for their turn, and lose no conflict. Spark downloads Java Paimon from Maven Central.",
        ),
    ] = False,
    s3_endpoint: Annotated[
        str | None,
        typer.Option(
            envvar="LAKEWARDEN_S3_ENDPOINT",
            show_envvar=False,
            metavar="URL",
            help="Use this S3 server for table and locks instead of the local disk, with the credentials in "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.  [env: LAKEWARDEN_S3_ENDPOINT]",
        ),
    ] = None,
    s3_bucket: Annotated[
        str | None,
        typer.Option(
            envvar="LAKEWARDEN_DEMO_S3_BUCKET",
            show_envvar=False,
            metavar="NAME",
            help="Bucket on the S3 server; created if missing.  "
            f"[env: LAKEWARDEN_DEMO_S3_BUCKET; default: {DEFAULT_BUCKET}]",
        ),
    ] = None,
    output: Annotated[
        ReportForm,
        typer.Option(
            help="Format of the report. With json, the report is one JSON object on stdout, and all other output goes to stderr."
        ),
    ] = ReportForm.TEXT,
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
    if s3_bucket is not None and s3_endpoint is None:
        raise typer.BadParameter("--s3-bucket needs --s3-endpoint", param_hint="--s3-bucket")
    if without_agent and admission is not Admissions.BOTH:
        raise typer.BadParameter("without an agent there is no admission", param_hint="--admission")
    if form is not FormatChoice.PAIMON:
        for given, option in ((s3_endpoint is not None, "--s3-endpoint"), (without_agent, "--without-agent")):
            if given:
                raise typer.BadParameter(f"only with --format paimon, not {form.value}", param_hint=option)
    if primary_key:
        for given, other in (
            (form is not FormatChoice.PAIMON, f"--format {form.value}"),
            (without_agent, "--without-agent"),
        ):
            if given:
                raise typer.BadParameter(f"not with {other}", param_hint="--primary-key")
    refuse_unknown_variables(os.environ, Settings.model_fields)
    console = Console(stderr=output is ReportForm.JSON, highlight=False)
    errors = Console(stderr=True, highlight=False)
    try:
        # Imported here so that `lakewarden --help` works without the demo's dependencies.
        from lakewarden.agent.demo.run import DemoSettings, run_demo
    except ImportError as error:
        errors.print(
            f"error: {error.name} is not installed; run pip install 'lakewarden[demo]'",
            style="red",
            markup=False,
        )
        raise typer.Exit(1) from error
    settings = DemoSettings(
        days=days,
        admissions=() if without_agent else admission.each,
        s3_endpoint=s3_endpoint,
        s3_bucket=s3_bucket or DEFAULT_BUCKET,
        form=form,
        primary_key=primary_key,
        data=data,
        picture=picture.resolve(),
    )
    try:
        report = run_demo(settings, console)
    except DemoError as error:
        errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        errors.print("interrupted; all processes of the demo have ended", markup=False)
        raise typer.Exit(130) from error
    if output is ReportForm.JSON:
        typer.echo(report.as_json())
    else:
        report.print(console)
    if report.with_agent and not report.clean:
        raise typer.Exit(1)
