"""Choose the prompts of a corpus: filters, then a seeded sample that can grow.

python scripts/make_corpus.py --corpus wikipedia
"""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the source, filter and sample it, write the corpus."""
    from layerwise.corpora.filters import select
    from layerwise.corpora.sources import open_source
    from layerwise.corpora.table import Corpus, write_corpus

    name = run.names["corpus"]
    settings = run.config.corpora[name]
    path = run.input("texts") if "texts" in run.inputs else None
    rows = open_source(settings.source, path)
    chosen = select(rows, settings.filters, settings.sample, total=rows.total, words=rows.words)
    write_corpus(
        run.files["corpus"],
        Corpus(name, chosen.prompt_ids, chosen.texts, chosen.n_tokens),
        key=run.stamp.key, recipe=run.stamp.recipe, counts=chosen.counts, **rows.facts,
    )  # fmt: skip


if __name__ == "__main__":
    cli.run_job("make_corpus", main, __doc__)
