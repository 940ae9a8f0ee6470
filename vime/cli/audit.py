"""`vime audit RUN`: the fate of every prompt and sample of a run, proven from its records."""

from __future__ import annotations

from pathlib import Path

import click

from vime.cli.app import emit_json

#: Exit code when the records contradict each other or something is missing.
_NOT_CLEAN = 1


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--deep", is_flag=True, help="Read every record that is still needed, against its digests.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the fate of every group.")
@click.pass_context
def audit(ctx: click.Context, run: Path, deep: bool, as_json: bool) -> None:
    """Prove that each prompt and sample of the run in folder RUN has one fate. Works on a running, a killed and a finished run.

    Exit code 0 when all is accounted for, 1 when not.
    """
    from vime.durable.audit import audit as look

    report = look(run, deep)
    code = 0 if report.clean else _NOT_CLEAN
    if as_json:
        emit_json("audit", report.to_dict(), code)
    else:
        click.echo(report.render())
    ctx.exit(code)
