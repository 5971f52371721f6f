"""Draw what the views of a corpus' images do: crop, flip, jitter, grey, blur."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the corpus, augment every prompt, write the views."""
    from layerwise.corpora.make import make_views

    settings = run.config.corpora[run.names["corpus"]].views
    make_views(
        run.files["views"], run.input("corpus"), settings, processes=run.threads,
        key=run.stamp.key, recipe=run.stamp.recipe,
    )  # fmt: skip


if __name__ == "__main__":
    cli.run_job("draw_image_views", main, __doc__)
