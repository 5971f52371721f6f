"""List the distinct texts of a task: what every model has to embed."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Load the task, list its texts, write them."""
    from layerwise.tasks.catalog import get_task, load
    from layerwise.tasks.texts import distinct_texts, write_texts

    name = run.names["task"]
    texts = distinct_texts(load(get_task(name, run.folders(name))))
    write_texts(run.files["texts"], texts, key=run.stamp.key, recipe=run.stamp.recipe)


if __name__ == "__main__":
    cli.run_job("list_task_texts", main, __doc__)
