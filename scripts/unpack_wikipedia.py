"""Clean the Wikipedia slice in gensim's test data of its markup: one row a paragraph."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the dump and write the table of paragraphs."""
    from layerwise.corpora.wikipedia import unpack

    unpack(run.files["texts"], key=run.stamp.key, recipe=run.stamp.recipe)


if __name__ == "__main__":
    cli.run_job("unpack_wikipedia", main, __doc__)
