"""The command `layerwise`: thin over the library, and over Snakemake for whole studies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from layerwise import addons
from layerwise.cli import runs
from layerwise.cli.options import (
    CSV,
    DEVICE,
    DTYPE,
    JSON,
    LABEL,
    MAX_LENGTH,
    REVISION,
    TEXT,
    TEXT_FILES,
    THREADS,
    figure_file,
    say,
    write_table,
)
from layerwise.errors import LayerwiseError, check_name

if TYPE_CHECKING:
    from layerwise.models.load import LoadedModel

# All else is imported when it is needed: `layerwise --help` shall be there at once.

app = typer.Typer(
    help="What each layer of a model represents, and which layer to use.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)

TOKEN_CHOICES = "all, drop_first or drop_sinks; of images also patches or class"
MODEL = Annotated[
    str,
    Argument(
        help="A name on the hub (owner/name), a folder, or package:NAME[/path] for an installed "
        "Python package. Add #FILE for a GGUF file in it."
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"layerwise {version('layerwise')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _opened(
    model: str, threads: int, max_length: int | None, revision: str, device: str, dtype: str
) -> AbstractContextManager[LoadedModel]:
    """Open a model that a command names."""
    import torch

    from layerwise.models.opening import open_model

    torch.set_num_threads(threads)
    return open_model(
        model, name=model, max_length=max_length, revision=revision, device=device, dtype=dtype
    )


@app.command()
def analyse(
    model: MODEL,
    texts: Annotated[
        Path, Argument(help=f"Texts: {TEXT_FILES}. Or a folder of images or recordings.")
    ],
    metric: Annotated[
        list[str] | None,
        Option(help="A metric; repeat for several (default: all that texts suffice for)."),
    ] = None,
    tokens: Annotated[str, Option(help=f"Tokens to pool: {TOKEN_CHOICES}.")] = "all",
    text: Annotated[str | None, Option(help="Column of the texts (default: text).")] = None,
    max_length: MAX_LENGTH = None,
    csv: CSV = None,
    json: JSON = None,
    plot: Annotated[
        Path | None,
        Option(help="Draw the metrics by depth (.png, .pdf, .svg).", callback=figure_file),
    ] = None,
    revision: REVISION = "main",
    device: DEVICE = "auto",
    dtype: DTYPE = "float32",
    threads: THREADS = 2,
) -> None:
    """Compute metrics of every layer of a model on texts, images or recordings.

    Example: layerwise analyse HuggingFaceTB/SmolLM2-135M texts.txt --metric prompt_entropy
    """
    from layerwise.analysis import measure, prompts_of
    from layerwise.metrics.registry import all_metrics
    from layerwise.vocabulary import TOKENS

    for name in metric or ():
        check_name("metric", name, all_metrics())
    check_name("token selection", tokens, TOKENS)
    prompts = prompts_of(texts, text)
    with _opened(model, threads, max_length, revision, device, dtype) as loaded:
        table, _ = measure(loaded, [prompts], threads, metrics=metric, tokens=tokens)
    say(table.pivot_table("value", "layer", "metric").round(3).to_string())
    write_table(table, csv, json)
    if plot is not None:
        from layerwise.api import plot as draw

        draw(table, list(table["metric"].unique())).savefig(plot)


@app.command()
def choose(
    model: MODEL,
    labels: Annotated[
        Path | None,
        Option(
            help="Labelled rows (.csv, .tsv, .jsonl, .parquet): columns text "
            "and label, or first, second and score. Or words and tags (.conll, .conllu). Or a "
            "folder of images or recordings, with a subfolder for each class."
        ),
    ] = None,
    text: TEXT = None,
    label: LABEL = None,
    kind: Annotated[
        str | None,
        Option(
            help="classification or regression (default: classification, unless "
            "the labels are more than 20 numbers that are not whole or hardly repeat)."
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        Option(
            help=f"Tokens to pool: {TOKEN_CHOICES} (default: drop_first for causal models, else "
            "all)."
        ),
    ] = None,
    within: Annotated[
        float | None,
        Option(
            min=0,
            help="Choose the earliest layer whose score is at most this many points below the "
            "output's.",
        ),
    ] = None,
    score: Annotated[
        str | None,
        Option(
            help="accuracy, balanced_accuracy, macro_f1, auroc or "
            "average_precision; r2 or spearman of numbers (default: accuracy, auroc if 80% of the "
            "rows are of one class, r2)."
        ),
    ] = None,
    sample: Annotated[
        int, Option(min=20, max=5000, help="Read at most this many texts, rows or words.")
    ] = 1000,
    max_length: MAX_LENGTH = None,
    seed: Annotated[int, Option(min=0, help="Seed of the sample and the splits.")] = 0,
    verbose: Annotated[bool, Option("--verbose", help="Print the whole table.")] = False,
    csv: CSV = None,
    json: JSON = None,
    plot: Annotated[
        Path | None,
        Option(help="Draw the scores by depth (.png, .pdf, .svg).", callback=figure_file),
    ] = None,
    revision: REVISION = "main",
    device: DEVICE = "auto",
    dtype: DTYPE = "float32",
    threads: THREADS = 2,
) -> None:
    """Recommend a layer of a model by labelled rows: that of the highest score.

    Example: layerwise choose HuggingFaceTB/SmolLM2-135M --labels reviews.csv
    """
    if labels is None:
        raise LayerwiseError(
            "choose needs labels: no metric of texts alone tells which layer to use. Label 40 "
            "texts or more, and give --labels FILE.",
            code="missing",
        )
    import torch

    from layerwise import choosing
    from layerwise.choosing import plot as draw
    from layerwise.choosing import short_name
    from layerwise.vocabulary import TOKENS

    if tokens is not None:
        check_name("token selection", tokens, TOKENS)
    # Files are checked before the model is loaded, which may take minutes.
    rows, described = choosing.read(labels, text or (), label, kind=kind, sample=sample, seed=seed)
    say(f"Read {described}.")
    torch.set_num_threads(threads)
    options: dict[str, Any] = {"max_length": max_length, "revision": revision, "dtype": dtype}
    choice = choosing.choose(
        model,
        rows,
        tokens=tokens,
        within=within,
        score=score,
        device=device,
        threads=threads,
        **options,
    )
    say(choice.advice, choice.reason, f"({model}, {choice.score}, tokens: {choice.tokens})")
    if verbose:
        say(choice.table.round(3).to_string(index=False, na_rep="–"))
    if choice.takes == "text":
        usual = {"max_length": None, "revision": "main", "dtype": "float32"}
        special = {key: value for key, value in options.items() if value != usual[key]}
        say(f"To save it: {choice.export_command(model, **special)}")
    write_table(choice.table, csv, json)
    if plot is not None:
        draw(choice, plot, short_name(model))


@app.command()
def export(
    model: MODEL,
    out: Annotated[Path, Argument(help="Folder to write: new or empty.")],
    layer: Annotated[
        int,
        Option(help="0 (embedding output) to the number of blocks."),
    ],
    pooling: Annotated[
        str | None,
        Option(help="mean, weighted_mean, max, last_token or cls (default: the model's own)."),
    ] = None,
    tokens: Annotated[str, Option(help="all, drop_first or drop_sinks.")] = "all",
    readout: Annotated[
        str | None,
        Option(help="final_norm or residual (default: final_norm where the model has one)."),
    ] = None,
    normalize: Annotated[
        bool | None,
        Option(help="Scale embeddings to unit length (default: as the model does)."),
    ] = None,
    texts: Annotated[
        Path | None,
        Option(help="Texts to check the export with (default: a few made-up ones)."),
    ] = None,
    why: Annotated[str, Option(help="Reason for the layer, for the model card.")] = "",
    max_length: MAX_LENGTH = None,
    revision: REVISION = "main",
    device: DEVICE = "auto",
    dtype: DTYPE = "float32",
    threads: THREADS = 2,
) -> None:
    """Save a model up to a layer, for sentence-transformers.

    Blocks after the layer are left out of the folder, which SentenceTransformer (6 or newer) loads
    where layerwise is not installed. Before anything is saved, its embeddings are compared with
    the whole model's.

    Example: layerwise export HuggingFaceTB/SmolLM2-135M --layer 28 --tokens drop_first smol-28
    """
    from layerwise import export
    from layerwise.analysis import prompts_of
    from layerwise.export import Recipe
    from layerwise.models.opening import depth_of

    recipe = Recipe(layer, tokens, pooling, readout, normalize)
    # What can be checked is checked before the model is loaded, which may take minutes.
    export.check_words(recipe)
    export.check_target(out)
    n_blocks = depth_of(model, revision)
    if n_blocks is not None:
        export.check_layer(recipe, model, n_blocks)
    checked_with = prompts_of(texts) if texts else export.made_up_texts()
    with _opened(model, threads, max_length, revision, device, dtype) as loaded:
        done = export.export(loaded, recipe, out, checked_with, origin=why)
    say(
        f"{done.folder} holds layer {layer} of {loaded.anatomy.n_layers - 1} of {model}.",
        f"Size: {done.parameters / 1e6:.1f} of {done.whole_parameters / 1e6:.1f} million "
        "parameters.",
        f"Checked on {len(checked_with)} texts: no coordinate differs by more than "
        f"{done.difference:.0e} of the embedding's norm.",
        f"Load it with SentenceTransformer({str(out)!r}"
        + (", trust_remote_code=True)" if recipe.needs_code else ")"),
    )


app.add_typer(runs.app)
addons.load("commands")
for name, (function, settings) in addons.COMMANDS.items():
    app.command(name, **settings)(function)


def main() -> None:
    """The console script: warnings on stderr, and a user's mistake as one line."""
    from layerwise.run.script import guarded

    guarded(app, terse=True)
