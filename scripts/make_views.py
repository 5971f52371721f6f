"""Augment the prompts of a corpus by nlpaug: views 1 … V of each, all different."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the corpus, augment every prompt, write the views."""
    from layerwise.corpora.augment import augment
    from layerwise.corpora.table import read_corpus, write_views

    settings = run.config.corpora[run.names["corpus"]].views
    corpus = read_corpus(run.input("corpus"))
    views = augment(corpus, settings, run.threads)
    write_views(
        run.files["views"], corpus, views, settings.n,
        key=run.stamp.key, recipe=run.stamp.recipe,
    )  # fmt: skip


if __name__ == "__main__":
    cli.run_job("make_views", main, __doc__)
