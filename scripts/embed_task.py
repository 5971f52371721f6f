"""Embed every text of a task at every layer of a model, in one pass, into one HDF5 file."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from layerwise import cli


def main(arguments: argparse.Namespace) -> None:
    """Read the task's texts, load the model once, write the embeddings."""
    from layerwise.activations.embed import embed
    from layerwise.activations.extract import set_threads
    from layerwise.files import provenance
    from layerwise.models.load import load
    from layerwise.tasks import layout
    from layerwise.tasks.texts import read_texts

    set_threads(arguments.threads)
    settings = arguments.settings
    keys, texts = read_texts(arguments.texts, arguments.task)
    loaded = load(
        arguments.model,
        arguments.spec,
        arguments.revision,
        device=arguments.machine.get("device", "auto"),
        dtype=settings.get("dtype", "float32"),
    )
    readings = [
        layout.Reading(*parts)
        for parts in itertools.product(
            settings.get("tokens", ["all", "drop_first"]),
            settings.get("poolings", ["mean"]),
            settings.get("readouts", ["residual"]),
        )
    ]
    record = provenance(
        model=loaded.name,
        revision=loaded.revision,
        task=arguments.task,
        weights_sha256=loaded.weights,
        dtype=loaded.dtype,
        device=str(loaded.device),
        special_tokens=loaded.special_tokens,
        key=arguments.key,
    )
    with layout.create(
        arguments.output,
        tokens=[r.tokens for r in readings],
        pooling=[r.pooling for r in readings],
        readout=[r.readout for r in readings],
        n_layers=loaded.anatomy.n_layers,
        texts_keys=keys,
        hidden=loaded.anatomy.hidden,
        attributes=record,
    ) as file:

        def write(start: int, stop: int, slab: object) -> None:
            file["embedding"][:, :, start:stop] = slab

        embed(
            loaded, texts, write,
            readings=readings, budget=arguments.machine.get("batch_tokens"),
        )  # fmt: skip


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--model", required=True, help="the model's name in the config")
    parser.add_argument("--spec", type=cli.json_argument, required=True, help="its entry, as JSON")
    parser.add_argument("--revision", default="main")
    parser.add_argument("--task", required=True, help="name of the MTEB task")
    parser.add_argument(
        "--texts", type=Path, required=True, help="the task's texts (parquet: key, text)"
    )
    parser.add_argument(
        "--settings", type=cli.json_argument, default={},
        help="JSON: dtype, tokens, poolings, readouts",
    )  # fmt: skip
    parser.add_argument(
        "--machine", type=cli.json_argument, default={}, help="JSON: device, batch_tokens"
    )
    parser.add_argument("--key", default="", help="the job's key, kept in the file")
    parser.add_argument("--output", type=Path, required=True, help="embeddings file (HDF5)")
    cli.run(main, parser.parse_args())
