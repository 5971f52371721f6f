"""Write the texts, the tasks or a model: the commands of ``rules.smk``."""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise.run.script import guarded, write_marker


def texts(options: argparse.Namespace) -> None:
    """Write the table of paragraphs."""
    from quickstart import wikipedia

    (table,) = options.output
    wikipedia.unpack(table, key=options.key)


def tasks(options: argparse.Namespace) -> None:
    """Write the folder of each task; its name is the task's."""
    from quickstart import wikipedia
    from quickstart.tasks import make_task, passages_of

    passages = passages_of(wikipedia.read_paragraphs(options.texts))
    for folder in options.output:
        make_task(folder, passages)
        write_marker(folder, options.key)


def train(options: argparse.Namespace) -> None:
    """Train a model and save it at each step; the last output is the table of losses."""
    import pandas as pd
    import torch

    from layerwise.io.files import replacing
    from quickstart import wikipedia
    from quickstart.nano import MODELS, train

    torch.set_num_threads(1)  # more add numbers in another order, which changes the weights
    *folders, losses = options.output
    by_step = {int(folder.name.removeprefix("step")): folder for folder in folders}
    paragraphs = [paragraph.text for paragraph in wikipedia.read_paragraphs(options.texts)]
    history = train(paragraphs, MODELS[options.model], by_step)
    with replacing(losses) as partial:
        pd.DataFrame(history).to_csv(partial, index=False)
    for folder in folders:
        write_marker(folder, options.key)


def main() -> None:
    """Parse the options and run one command; a user's mistake becomes one line and status 1."""
    parser = argparse.ArgumentParser(prog="python -m quickstart", description=__doc__)
    parser.add_argument("command", choices=["texts", "tasks", "train"])
    parser.add_argument("--texts", type=Path, help="table of paragraphs to read")
    parser.add_argument("--model", help="model to train")
    about = "files and folders to write"
    parser.add_argument("--output", type=Path, nargs="+", required=True, help=about)
    parser.add_argument("--key", default="", help="key of the recipe, stored with the output")
    parser.add_argument("--log", type=Path, help="also write the log to this file")
    options = parser.parse_args()
    command = {"texts": texts, "tasks": tasks, "train": train}[options.command]
    guarded(lambda: command(options), options.log)


if __name__ == "__main__":
    main()
