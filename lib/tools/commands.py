"""The commands `plan`, `doctor`, `verify`, `publish` and `export-scores` of `layerwise`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from layerwise.addons import command
from layerwise.cli.options import DEVICE, DTYPE, REVISION, THREADS, output_file, say
from layerwise.cli.runs import CONFIG, EXTRA, run_snakemake

# All else is imported when it is needed: `layerwise --help` shall be there at once.


@command("plan", context_settings=EXTRA)
def plan(
    context: typer.Context,
    config: CONFIG = Path("config.yaml"),
    tflops: Annotated[
        float, Option(min=0.001, help="10¹² operations per second that a GPU reaches.")
    ] = 30,
) -> None:
    """List the jobs of a run and what they take, without running it.

    GPU memory and hours, downloads and activations are estimates from the names of models and the
    lengths of texts, of what is due. Further options are those of `run`.
    """
    from tools.forecast import Forecast

    planned = run_snakemake(config, *context.args, "--dry-run", "--quiet", "host", "rules")
    table = Forecast(planned).table(tflops)
    if len(table):
        say(table.to_string(index_names=False, float_format="{:,.1f}".format))
    if planned.measured and not planned.config.extract.keep_activations:
        n = sum(map(len, planned.measured.values()))
        say(f"Activations are not kept: one more metric takes {n:,} extractions again.")


@command("doctor")
def doctor() -> None:
    """Print what to look at first when something does not work, and what to send with a report.

    Versions, CPU and GPU, the cache of models, the space on disk, and packages that are missing.
    """
    from tools.doctor import facts

    for name, text in facts():
        say(f"{name + ':':14}{text}")


@command("verify")
def verify(
    models: Annotated[list[str], Argument(help="Models, each as for the other commands.")],
    table: Annotated[
        Path | None,
        Option(help="CSV of verified models to add to, or to begin.", callback=output_file),
    ] = None,
    random: Annotated[bool, Option("--random", help="The weights are random.")] = False,
    revision: REVISION = "main",
    device: DEVICE = "auto",
    dtype: DTYPE = "float32",
    threads: THREADS = 2,
) -> None:
    """Prove the layers of models, compare them with transformers' own states, and say what was
    measured.

    Example: layerwise verify HuggingFaceTB/SmolLM2-135M --table verified.csv
    """
    import resource

    import torch

    from tools import verify as verified

    torch.set_num_threads(threads)
    weights = "random" if random else "real"
    rows = [
        verified.verify(model, weights=weights, revision=revision, device=device, dtype=dtype)
        for model in models
    ]
    for row in rows:
        say(*(f"{name}: {row[name]}" for name in verified.COLUMNS if name in row), "")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    say(f"This process took {peak:,.0f} MB of memory.")
    if table is not None:
        verified.record(table, rows)
    if any("refused" in row for row in rows):
        raise typer.Exit(1)


@command("publish")
def publish(
    results: Annotated[Path, Argument(help="A results folder.")],
    out: Annotated[Path, Argument(help="Folder to write: new or empty.")],
    licence: Annotated[
        str, Option(help="Licence of the data set, as the hub names it, such as cc-by-4.0.")
    ] = "other",
) -> None:
    """Write the tables, a card and the explorer of a run as a data set for the hub.

    Nothing is uploaded.

    Example: layerwise publish results my-layers --licence cc-by-4.0
    """
    from layerwise.export import check_target
    from tools.publish import publish as write

    check_target(out)
    names = write(results, out, licence)
    say(
        f"{out} holds {', '.join(names)}, README.md and index.html.",
        f"Upload it: hf upload OWNER/NAME {shlex.quote(str(out))} --repo-type dataset",
    )


@command("export-scores")
def export_scores(
    results: Annotated[Path, Argument(help="Results folder of a run that kept all scores.")],
    out: Annotated[Path, Argument(help="Folder to write, for mteb.ResultCache.")],
) -> None:
    """Write the scores of every layer as mteb's own result files, an experiment for each layer.

    The run needs scoring: {sub_scores: true} in its config.

    Example: layerwise export-scores results mteb-results
    """
    import layerwise
    from tools.mteb_results import export_scores

    n = export_scores(layerwise.open(results), out)
    say(f"Wrote {n} files. Read them: mteb.ResultCache({str(out)!r}).load_results(...)")
