"""Extract every layer of a model at one revision on one corpus, all views, into one HDF5 file."""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise import cli


def main(arguments: argparse.Namespace) -> None:
    """Read the corpus and its views, load the model once, write the activations."""
    from layerwise.activations.extract import Plan, extract, set_threads
    from layerwise.corpora.table import read_prompts
    from layerwise.models.load import load

    set_threads(arguments.threads)
    settings = arguments.settings
    corpus, views = read_prompts(arguments.corpus, arguments.views)
    loaded = load(
        arguments.model,
        arguments.spec,
        arguments.revision,
        device=arguments.machine.get("device", "auto"),
        dtype=settings.get("dtype", "float32"),
    )
    extract(
        loaded,
        corpus=corpus.name,
        prompts=corpus.prompt_ids,
        views=[corpus.texts, *views],
        plan=Plan.from_settings({**settings, **arguments.machine}),
        target=arguments.output,
        attributes={"corpus_sha256": corpus.hash, "n_views": len(views), "key": arguments.key},
    )


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--model", required=True, help="the model's name in the config")
    parser.add_argument(
        "--spec",
        type=cli.json_argument,
        required=True,
        help='the model\'s config entry as JSON: {"source": {"hub": "EleutherAI/pythia-14m"}}',
    )
    parser.add_argument("--revision", default="main")
    parser.add_argument("--corpus", type=Path, required=True, help="corpus file (parquet)")
    parser.add_argument("--views", type=Path, help="views file (parquet)")
    parser.add_argument(
        "--settings", type=cli.json_argument, default={},
        help="JSON: dtype, tokens, readout, protocols, spectra, curvature, sublayers, "
        "keep_states",
    )  # fmt: skip
    parser.add_argument(
        "--machine", type=cli.json_argument, default={}, help="JSON: device, batch_tokens"
    )
    parser.add_argument("--key", default="", help="the job's key, kept in the file")
    parser.add_argument("--output", type=Path, required=True, help="activations file (HDF5)")
    cli.run(main, parser.parse_args())
