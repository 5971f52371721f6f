"""Train a small language model for the quickstart and save it at log-spaced revisions."""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path

from layerwise import cli
from layerwise.errors import LayerwiseError
from layerwise.files import replacing


def main(arguments: argparse.Namespace) -> None:
    """Read the paragraphs, train, save the revisions and the table of their losses."""
    import torch

    from layerwise.corpora.paragraphs import read_paragraphs
    from layerwise.models import nano
    from layerwise.plan import MARKER

    torch.set_num_threads(arguments.threads)
    texts = [paragraph.text for paragraph in read_paragraphs(arguments.texts)[0]]
    folders = {step_of(name): arguments.folder / name for name in arguments.revisions}
    history = nano.train(texts, arguments.settings, sorted(folders), folders)
    for folder in folders.values():
        (folder / MARKER).write_text(arguments.key)
    with replacing(arguments.losses) as partial, partial.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(history[0]))
        writer.writeheader()
        writer.writerows(history)


def step_of(revision: str) -> int:
    """The step that a revision such as ``step64`` names."""
    found = re.fullmatch(r"step(\d+)", revision)
    if not found:
        raise LayerwiseError(f"{revision!r} is no revision of a nano model; they are 'step0', …")
    return int(found[1])


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--texts", type=Path, required=True, help="table of paragraphs (parquet)")
    parser.add_argument("--settings", type=cli.json_argument, required=True, help="JSON")
    parser.add_argument("--revisions", nargs="+", required=True, help="step0 step1 step2 …")
    parser.add_argument("--folder", type=Path, required=True, help="where the revisions go")
    parser.add_argument("--key", default="", help="the job's key, kept in each folder")
    parser.add_argument("--losses", type=Path, required=True, help="table of losses (csv)")
    cli.run(main, parser.parse_args())
