"""Select the prompts of a corpus: filter its source and draw a stable sample."""

from __future__ import annotations

from pathlib import Path

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Open the source, select, write the corpus."""
    from layerwise.corpora.prompts import make_corpus

    plan, name = arguments.plan, arguments.corpus
    settings = plan.config.corpora[name]
    texts = next(iter(arguments.texts), None)
    task = getattr(settings.source, "task", None)
    if task is not None:
        from layerwise.tasks.task import texts_of

        texts = texts_of(script.task_of(plan, task))
    make_corpus(arguments.output, name, settings, texts=texts, key=arguments.key)


if __name__ == "__main__":
    options = script.parser(__doc__, "corpus", stage="corpus", output="corpus to write")
    about = "files that the texts come from: generated texts, or a user's"
    options.add_argument("--texts", type=Path, nargs="*", default=[], help=about)
    script.run(main, options)
