"""`lakewarden demo`, for the command line."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lakewarden.agent.demo.settings import DEFAULT_BUCKET, DEFAULT_DAYS


class ReportForm(StrEnum):
    """How the final report is printed."""

    TEXT = "text"
    JSON = "json"


def demo_command(
    *,
    days: Annotated[
        int,
        typer.Option(
            min=1,
            max=365,
            envvar="LAKEWARDEN_DEMO_DAYS",
            help="How many days of the year 2013 the two queries bring; a day has about 920 flights; 365 is all.",
        ),
    ] = DEFAULT_DAYS,
    without_agent: Annotated[
        bool,
        typer.Option(
            "--without-agent",
            help="Run the same two queries uncoordinated, and print which rows that loses. Exits 0.",
        ),
    ] = False,
    s3_endpoint: Annotated[
        str | None,
        typer.Option(
            envvar="LAKEWARDEN_S3_ENDPOINT",
            metavar="URL",
            help="Put table and locks on this S3 server instead of the local disk. "
            "Credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        ),
    ] = None,
    s3_bucket: Annotated[
        str | None,
        typer.Option(
            envvar="LAKEWARDEN_DEMO_S3_BUCKET",
            metavar="NAME",
            help=f"Bucket for --s3-endpoint; made if it is missing.  [default: {DEFAULT_BUCKET}]",
        ),
    ] = None,
    output: Annotated[
        ReportForm,
        typer.Option(
            help="`text` for people. `json` prints the report as one JSON object on stdout, all else on stderr."
        ),
    ] = ReportForm.TEXT,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Keep feeds, table, checkpoints and logs in a new folder under DIR; without it they are removed.",
        ),
    ] = None,
    picture: Annotated[
        Path,
        typer.Option(metavar="PATH", dir_okay=False, help="Where to write the picture of the run, a PNG."),
    ] = Path("lakewarden-demo.png"),
) -> None:
    """Watch two Spark streaming queries collide on one Paimon table, and lose nothing.

    Real flights, a real Kafka, real Spark; no Docker, and nothing is left running. At the end the table is compared
    with the input row by row.

    Exit status: 0 every row is there once and right (with --without-agent: the run went to its end); 1 it is not, or
    the run failed; 130 stopped by Ctrl-C.
    """
    if s3_bucket is not None and s3_endpoint is None:
        raise typer.BadParameter(
            "a bucket needs its server: give --s3-endpoint, too", param_hint="--s3-bucket"
        )
    console = Console(stderr=output is ReportForm.JSON, highlight=False)
    errors = Console(stderr=True, highlight=False)
    try:
        # Not at the top: `lakewarden --help` must work without the demo's own dependencies.
        from lakewarden.agent.demo.errors import DemoError
        from lakewarden.agent.demo.run import DemoSettings, run_demo
    except ImportError as error:
        errors.print(
            f"error: {error.name} is not installed; install lakewarden[demo]", style="red", markup=False
        )
        raise typer.Exit(1) from error
    settings = DemoSettings(
        days=days,
        with_agent=not without_agent,
        s3_endpoint=s3_endpoint,
        s3_bucket=s3_bucket or DEFAULT_BUCKET,
        data=data,
        picture=picture.resolve(),
    )
    try:
        report = run_demo(settings, console)
    except DemoError as error:
        errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        errors.print("stopped; nothing is left running", markup=False)
        raise typer.Exit(130) from error
    if output is ReportForm.JSON:
        typer.echo(report.as_json())
    else:
        report.print(console)
    if report.with_agent and not report.check.clean:
        raise typer.Exit(1)
