"""Fetch a model at a revision, the data set of a corpus, or that of a task, into the caches.

The record of it says its commit, or why it could not be fetched.
"""

from __future__ import annotations

from pathlib import Path

from layerwise.names import decode
from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Fetch one thing and record it, or list what was not fetched."""
    from layerwise.config.corpora import data_of
    from layerwise.config.tasks import MtebEntry
    from layerwise.run import fetch

    config = arguments.config
    if arguments.model:
        entry = config.models[arguments.model]
        fetch.fetched(arguments.output, lambda: fetch.fetch_model(entry, arguments.revision))
    elif arguments.corpus:
        source = data_of(config.corpora[arguments.corpus].source)
        fetch.fetched(arguments.output, lambda: fetch.fetch_corpus(source))
    elif arguments.task:
        task = config.tasks.get(arguments.task, MtebEntry())
        fetch.fetched(arguments.output, lambda: fetch.fetch_task(arguments.task, task))
    else:
        fetch.summarize(list(map(Path, arguments.plan.fetched)))


if __name__ == "__main__":
    options = script.parser(__doc__)
    for name in ("model", "revision", "corpus", "task"):
        options.add_argument(f"--{name}", type=decode, help=f"name of the {name} in the config")
    options.add_argument("--output", type=Path, help="record to write")
    script.run(main, options)
