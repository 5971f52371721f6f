"""Extract every layer of a model at one revision on one corpus, all views, into one HDF5 file.

python scripts/extract_activations.py --model minilm-l6 --corpus wikipedia
"""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the corpus and its views, load the model once, write the activations."""
    from layerwise.activations.extract import extract, set_threads
    from layerwise.corpora.table import read_prompts
    from layerwise.models.load import load

    set_threads(run.threads)
    model = run.names["model"]
    settings = run.config.extraction(model)
    corpus, views = read_prompts(run.input("corpus"), run.input("views"))
    loaded = load(
        model, run.loadable(model), run.names["revision"],
        device=settings.device, dtype=settings.dtype,
    )  # fmt: skip
    extract(
        loaded,
        corpus=corpus.name,
        prompts=corpus.prompt_ids,
        views=[corpus.texts, *views],
        settings=settings,
        target=run.files["activations"],
        attributes={"corpus_sha256": corpus.hash, "n_views": len(views), **run.stamp.facts()},
    )


if __name__ == "__main__":
    cli.run_job("extract_activations", main, __doc__)
