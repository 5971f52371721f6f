"""Embed every text of a task at every layer of a model, in one pass, into one HDF5 file.

python scripts/embed_task.py --model minilm-l6 --task LeeNewsSimilarity
"""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the task's texts, load the model once, write the embeddings."""
    from layerwise.activations.embed import embed, those_it_has
    from layerwise.activations.extract import set_threads
    from layerwise.files import provenance
    from layerwise.models.load import load
    from layerwise.tasks import layout
    from layerwise.tasks.texts import read_texts

    set_threads(run.threads)
    model, task = run.names["model"], run.names["task"]
    settings, scoring = run.config.extraction(model), run.config.scoring_of(model)
    keys, texts = read_texts(run.input("texts"), task)
    loaded = load(
        model, run.loadable(model), run.names["revision"],
        device=settings.device, dtype=settings.dtype,
    )  # fmt: skip
    asked = layout.readings(settings.tokens, scoring.poolings, scoring.readouts)
    readings = those_it_has(loaded, asked)
    record = provenance(
        model=loaded.name,
        revision=loaded.revision,
        task=task,
        weights_sha256=loaded.weights,
        dtype=loaded.dtype,
        device=str(loaded.device),
        special_tokens=loaded.special_tokens,
        **run.stamp.facts(),
    )
    with layout.create(
        run.files["embeddings"],
        readings=readings,
        n_layers=loaded.anatomy.n_layers,
        texts_keys=keys,
        hidden=loaded.anatomy.hidden,
        attributes=record,
    ) as file:

        def write(start: int, stop: int, slab: object) -> None:
            file["embedding"][:, :, start:stop] = slab

        embed(loaded, texts, write, readings=readings, budget=settings.batch_tokens)


if __name__ == "__main__":
    cli.run_job("embed_task", main, __doc__)
