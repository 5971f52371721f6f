"""Make the augmented copies of a corpus of texts (nlpaug), images (kornia) or recordings."""

from pathlib import Path

from layerwise.run import script


def main(job: script.Job) -> None:
    """Read the corpus, augment, write the views."""
    from layerwise.corpora.prompts import make_views

    settings = job.config.corpora[job.names["corpus"]].views
    output, corpus = Path(job.output[0]), Path(job.input.corpus)
    make_views(output, corpus, settings, processes=job.threads, key=job.key)


if __name__ == "__main__":
    script.run(main, snakemake)
