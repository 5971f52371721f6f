"""The command `compare` of `layerwise`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from layerwise.addons import command
from layerwise.cli.options import output_file, say


@command("compare")
def compare(
    results: Annotated[Path, Argument(help="Results folder of your run.")],
    other: Annotated[
        str,
        Argument(
            help="Another results folder, a table of published scores, or "
            "'published' for the numbers that ship with layerwise."
        ),
    ],
    model: Annotated[str, Argument(help="Model, in upper or lower case.")],
    revision: Annotated[
        str | None, Option(help="Checkpoint of your run, if it has several.")
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            help="CSV of all tasks and layers (default: print it).",
            callback=output_file,
        ),
    ] = None,
) -> None:
    """Compare a model's task scores with those of another run or with the published ones.

    Scores are of all tokens, mean pooling and the final norm, as in presets/as_released.yaml.

    Example: layerwise compare results/as_released published pythia-410m
    """
    from papers import published

    first = published.read_scores(str(results), model, revision)
    differences = published.differences(first, published.read_scores(other, model))
    if output:
        differences.to_csv(output, index=False, float_format="%.4f")
    else:
        say(published.by_task_and_layer(differences))
    say(*published.described(differences))
