"""Measure how surprising each prompt of a corpus is to a model.

python scripts/measure_surprisal.py --model smollm2-135m --revision main --corpus wikipedia
"""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Load the model, read the corpus, write a row a prompt."""
    from layerwise import tables
    from layerwise.activations.extract import set_threads, token_ids
    from layerwise.corpora.prompts import read
    from layerwise.models.load import load
    from layerwise.tasks.surprisal import surprisals

    set_threads(run.threads)
    model = run.names["model"]
    settings = run.config.extraction(model)
    loaded = load(
        model, run.loadable(), run.names["revision"],
        device=settings.device, dtype=settings.dtype,
    )  # fmt: skip
    corpus = read(run.input("corpus"))
    ids = token_ids(
        loaded, corpus.ids, corpus.views[0],
        perturb=run.config.corpora[corpus.name].perturb,
    )  # fmt: skip
    found = surprisals(loaded, run.loadable(), corpus.name, corpus.ids, ids, settings.batch_tokens)
    tables.write(run.files["surprisals"], found, key=run.stamp.key, recipe=run.stamp.recipe)


if __name__ == "__main__":
    cli.run_job("measure_surprisal", main, __doc__)
