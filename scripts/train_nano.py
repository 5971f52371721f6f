"""Train a small model and save it at log-spaced checkpoints."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from layerwise.io.files import replacing
from layerwise.names import encode, step_of
from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read the training texts, train, save the checkpoints and the table of their losses."""
    import torch

    from layerwise.corpora.wikipedia import read_paragraphs
    from layerwise.models import nano

    torch.set_num_threads(arguments.threads)
    config = arguments.config
    folder = Path(config.results, "nano", encode(arguments.model))
    revisions = config.models[arguments.model].revisions
    folders = {step_of(r): folder / encode(r) for r in revisions}
    texts = [paragraph.text for paragraph in read_paragraphs(arguments.texts)]
    history = nano.train(texts, config.nano[arguments.model], sorted(folders), folders)
    with replacing(arguments.losses) as partial:
        pd.DataFrame(history).to_csv(partial, index=False)
    for checkpoint in folders.values():
        script.write_marker(checkpoint, arguments.key)


if __name__ == "__main__":
    files = {"texts": "paragraphs to train on", "losses": "table of losses to write"}
    script.run(main, script.parser(__doc__, "model", stage="nano", **files))
