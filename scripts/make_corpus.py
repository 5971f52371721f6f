"""Select the prompts or images of a corpus: filter its source and draw a stable sample.

python scripts/make_corpus.py --corpus wikipedia
"""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the source, filter and sample it, write the corpus."""
    from layerwise.corpora.make import make_corpus

    name = run.names["corpus"]
    texts = run.input("texts") if "texts" in run.inputs else None
    make_corpus(
        run.files["corpus"], name, run.config.corpora[name], texts=texts,
        key=run.stamp.key, recipe=run.stamp.recipe,
    )  # fmt: skip


if __name__ == "__main__":
    cli.run_job("make_corpus", main, __doc__)
