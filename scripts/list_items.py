"""List the questions or sentence pairs of a task that is scored from token states."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read what the config names, or make it of Wikipedia; write it."""
    from layerwise.corpora.paragraphs import read_paragraphs
    from layerwise.tasks.items import write_items

    entry = run.config.token_tasks[run.names["task"]]
    paragraphs = read_paragraphs(run.input("texts"))[0] if "texts" in run.inputs else ()
    write_items(
        run.files["listed"],
        entry,
        paragraphs=paragraphs,
        key=run.stamp.key,
        recipe=run.stamp.recipe,
    )


if __name__ == "__main__":
    cli.run_job("list_items", main, __doc__)
