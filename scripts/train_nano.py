"""Train a small model for the quickstart and save it at log-spaced revisions."""

from __future__ import annotations

import csv

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read what it is trained on, train, save the revisions and the table of their losses."""
    import torch

    from layerwise.files import replacing
    from layerwise.workflow import stamps

    torch.set_num_threads(run.threads)
    model = run.names["model"]
    markers = {r: run.files[f"folder:{r}"] for r in run.config.models[model].revisions}
    folders = {int(r.removeprefix("step")): marker.parent for r, marker in markers.items()}
    # What is half overwritten must not pass for whole.
    for marker in [*markers.values(), run.files["stamp"]]:
        marker.unlink(missing_ok=True)
    settings, steps = run.config.nano[model], sorted(folders)
    if settings.of_images:
        from layerwise.corpora.prompts import read
        from layerwise.models import nano_images

        pictures = read(run.input("corpus")).views[0]
        history = nano_images.train(pictures, settings, steps, folders)
    else:
        from layerwise.models import nano

        history = nano.train(_texts(run), settings, steps, folders)
    with replacing(run.files["losses"]) as partial, partial.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(history[0]))
        writer.writeheader()
        writer.writerows(history)
    for marker in [*markers.values(), run.files["stamp"]]:
        stamps.write(marker, run.stamp)


def _texts(run: cli.Run) -> list[str]:
    from layerwise.corpora.paragraphs import read_paragraphs
    from layerwise.corpora.prompts import read

    if "corpus" in run.inputs:
        return list(read(run.input("corpus")).views[0])
    return [paragraph.text for paragraph in read_paragraphs(run.input("texts"))[0]]


if __name__ == "__main__":
    cli.run_job("train_nano", main, __doc__)
