"""Extract every layer of a model at a checkpoint on one shard of a corpus.

python scripts/extract_shard.py --model minilm-l6 --revision main --corpus wikipedia --shard 0
"""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Load the model, read the corpus and its views, write the shard's activations."""
    from layerwise.activations.extract import set_threads
    from layerwise.activations.shards import extract_shard
    from layerwise.corpora.prompts import read
    from layerwise.models.load import load

    set_threads(run.threads)
    model, shard = run.names["model"], int(run.names["shard"])
    settings = run.config.extraction(model, run.names["corpus"])
    loaded = load(
        model, run.loadable(), run.names["revision"],
        device=settings.device, dtype=settings.dtype,
    )  # fmt: skip
    corpus = read(run.input("corpus"), run.input("views"))
    extract_shard(
        loaded,
        corpus=corpus.name,
        prompts=corpus.ids,
        views=corpus.views,
        settings=settings,
        shard=shard,
        perturb=run.config.corpora[corpus.name].perturb,
        target=run.files["activations"],
        attributes={
            "corpus_sha256": corpus.hash, "n_views": len(corpus.views) - 1, **run.stamp.facts()
        },
    )  # fmt: skip


if __name__ == "__main__":
    cli.run_job("extract_shard", main, __doc__)
