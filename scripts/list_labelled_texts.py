"""List the distinct texts of a task of one's own labels: what every model has to embed."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the labelled file, list its texts, write them."""
    from layerwise.tasks.labelled import texts_of
    from layerwise.tasks.texts import write_texts

    name = run.names["task"]
    images = run.input("corpus") if "corpus" in run.inputs else None
    texts = texts_of(name, run.config.own_tasks[name], images)
    write_texts(run.files["texts"], texts, key=run.stamp.key, recipe=run.stamp.recipe)


if __name__ == "__main__":
    cli.run_job("list_labelled_texts", main, __doc__)
