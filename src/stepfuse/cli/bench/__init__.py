"""`stepfuse bench ...`: measurements with every label, one file a command."""

from __future__ import annotations

import typer

from stepfuse.cli.bench import gate, kernel, peers, step

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)
app.command("step")(step.step)
app.command("peers")(peers.peers)
app.command("kernel")(kernel.kernel)
app.command("gate")(gate.gate)
