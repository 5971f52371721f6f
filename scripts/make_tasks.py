"""Make the folders of the quickstart's tasks from package data and the Wikipedia paragraphs."""

from __future__ import annotations

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Write a folder for each task, and the key of all."""
    from layerwise.corpora.wikipedia import read_paragraphs
    from layerwise.tasks.quickstart import make_tasks

    make_tasks(read_paragraphs(arguments.texts), arguments.output)
    script.write_marker(arguments.output, arguments.key)


if __name__ == "__main__":
    files = {"texts": "Wikipedia paragraphs to read", "output": "folder to write"}
    script.run(main, script.parser(__doc__, stage="quickstart_tasks", **files))
