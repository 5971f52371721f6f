"""Commands of the annex: `python -m papers`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from layerwise.errors import LayerwiseError

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

RESULTS = "experiments/results"


@app.command()
def claims(
    csv: Annotated[
        Path | None, typer.Option(help="Write all numbers and conditions here.")
    ] = None,
) -> None:
    """Print the papers' claims with the numbers that their authors released.

    Example: python -m papers claims --csv docs/claims.csv > docs/claims.md
    """
    from papers.claims.page import page, rows
    from papers.tables import Release

    release = Release()
    if csv is not None:
        rows(release).to_csv(csv, index=False)
    typer.echo(page(release), nl=False)


@app.command()
def additions() -> None:
    """Print what the authors' numbers say that the papers don't, as CSV.

    Example: python -m papers additions > docs/additions.csv
    """
    from papers.additions import additions

    typer.echo(additions().to_csv(index=False), nl=False)


@app.command()
def losses() -> None:
    """Print what rules of layer selection lose in the published models, as CSV.

    Example: python -m papers losses > lib/papers/losses.csv
    """
    from papers.losses import losses

    typer.echo(losses().to_csv(index=False), nl=False)


@app.command(name="import")
def import_release(
    checkout: Annotated[Path, typer.Argument(help=f"The checkout, which holds {RESULTS}.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the tables into.")],
) -> None:
    """Import a checkout of https://github.com/OFSkean/information_flow as published tables.

    Writes scores.parquet and metrics.parquet, which the section `published` of a config takes.

    Example: python -m papers import information_flow published
    """
    from layerwise.io import tables
    from papers import release

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for name, read in (("scores", release.read_scores), ("metrics", release.read_metrics)):
        table = read(checkout / RESULTS)
        if table.empty:
            raise LayerwiseError(f"{checkout / RESULTS}: no {name} found.")
        tables.write(out / f"{name}.parquet", table)
        logging.info("%s.parquet: %d rows", name, len(table))


if __name__ == "__main__":
    try:
        app()
    except LayerwiseError as error:
        sys.exit(str(error))
