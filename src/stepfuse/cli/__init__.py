"""The `stepfuse` command. Every refusal is one line on stderr and exit code 2."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import stepfuse
from stepfuse.cli import bench, evaluate, generate, info, prepare
from stepfuse.core.errors import StepfuseError

__all__ = ["app", "main"]

app = typer.Typer(
    name="stepfuse",
    help="A latency-specialized decode runtime for the Kimi K3 model family.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("info")(info.info)
app.command("synth")(info.synth)
app.command("prepare")(prepare.prepare)
app.add_typer(bench.app, name="bench")
app.add_typer(evaluate.app, name="eval")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepfuse {stepfuse.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except StepfuseError as error:
        print(f"stepfuse: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is left to say to it.
        sys.stderr.close()
        sys.exit(1)
