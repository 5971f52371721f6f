"""Train a small model and save it at log-spaced checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from layerwise.io.files import replacing
from layerwise.names import encode, step_of
from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Read the training texts, train, save the checkpoints and the table of their losses."""
    import torch

    from layerwise.models import nano
    from layerwise.workflow.script import write_marker

    torch.set_num_threads(arguments.threads)
    config = script.config_of(arguments)
    folder = Path(config.results, "nano", encode(arguments.model))
    revisions = config.models[arguments.model].revisions
    folders = {step_of(r): folder / encode(r) for r in revisions}
    history = nano.train(
        read_texts(arguments.texts), config.nano[arguments.model], sorted(folders), folders
    )
    with replacing(arguments.losses) as partial:
        pd.DataFrame(history).to_csv(partial, index=False)
    for checkpoint in folders.values():
        write_marker(checkpoint / "layerwise.json", arguments.key)


def read_texts(path: Path) -> list[str]:
    """The paragraphs of the Wikipedia slice."""
    from layerwise.corpora.paragraphs import read_paragraphs

    return [paragraph.text for paragraph in read_paragraphs(path)[0]]


if __name__ == "__main__":
    script.run(
        main,
        script.files(
            script.parser(__doc__, "model"),
            texts="paragraphs to train on",
            losses="table of losses to write",
        ),
    )
