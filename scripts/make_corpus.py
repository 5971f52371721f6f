"""Select the prompts of a corpus: filter its source and draw a stable sample."""

from pathlib import Path

from layerwise.run import script


def main(job: script.Job) -> None:
    """Open the source, select, write the corpus."""
    from layerwise.corpora.prompts import make_corpus

    name = job.names["corpus"]
    settings = job.config.corpora[name]
    texts = next(iter(job.files("texts")), None)
    if (task := getattr(settings.source, "task", None)) is not None:
        from layerwise.tasks.task import texts_of

        texts = texts_of(script.task_of(job.plan, task))
    make_corpus(Path(job.output[0]), name, settings, texts=texts, key=job.key)


if __name__ == "__main__":
    script.run(main, snakemake)
