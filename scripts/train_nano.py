"""Train a small language model for the quickstart and save it at log-spaced revisions."""

from __future__ import annotations

import csv

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the paragraphs, train, save the revisions and the table of their losses."""
    import torch

    from layerwise.corpora.paragraphs import read_paragraphs
    from layerwise.corpora.table import read_prompts
    from layerwise.files import replacing
    from layerwise.models import nano
    from layerwise.workflow import stamps

    torch.set_num_threads(run.threads)
    model = run.names["model"]
    if "corpus" in run.inputs:
        texts = list(read_prompts(run.input("corpus"))[0].texts)
    else:
        texts = [paragraph.text for paragraph in read_paragraphs(run.input("texts"))[0]]
    markers = {r: run.files[f"folder:{r}"] for r in run.config.models[model].revisions}
    folders = {int(r.removeprefix("step")): marker.parent for r, marker in markers.items()}
    history = nano.train(texts, run.config.nano[model], sorted(folders), folders)
    with replacing(run.files["losses"]) as partial, partial.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(history[0]))
        writer.writeheader()
        writer.writerows(history)
    for marker in [*markers.values(), run.files["stamp"]]:
        stamps.write(marker, run.stamp)


if __name__ == "__main__":
    cli.run_job("train_nano", main, __doc__)
