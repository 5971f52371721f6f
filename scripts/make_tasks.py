"""Make the folders of the quickstart's tasks from package data and the Wikipedia paragraphs."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the paragraphs, make the tasks."""
    from layerwise.corpora.paragraphs import read_paragraphs
    from layerwise.tasks.names import QUICKSTART
    from layerwise.tasks.quickstart import make_tasks
    from layerwise.workflow import stamps

    paragraphs, _ = read_paragraphs(run.input("texts"))
    make_tasks(paragraphs, list(QUICKSTART), run.files["stamp"].parent)
    for path in [*(run.files[task] for task in QUICKSTART), run.files["stamp"]]:
        stamps.write(path, run.stamp)


if __name__ == "__main__":
    cli.run_job("make_tasks", main, __doc__)
