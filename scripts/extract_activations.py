"""Extract every layer of a model at a checkpoint on a corpus and its views, in one pass."""

from pathlib import Path

from layerwise.run import script


def main(job: script.Job) -> None:
    """Load the model, run the prompts, write the activations."""
    import torch

    from layerwise.activations.extract import extract
    from layerwise.corpora.prompts import read
    from layerwise.run.plan import extraction_of

    torch.set_num_threads(job.threads)
    model, revision, name = (job.names[kind] for kind in ("model", "revision", "corpus"))
    settings = extraction_of(job.config, model, name)
    corpus = read(Path(job.input.corpus), *job.files("views"))
    with script.open_model(job.plan, model, revision, settings) as loaded:
        extract(
            loaded,
            corpus=corpus.name,
            prompts=corpus.ids,
            views=corpus.views,
            settings=settings,
            perturb=job.config.corpora[name].perturb,
            target=Path(job.output[0]),
            attributes={
                "key": job.key,
                "corpus_sha256": corpus.hash,
                "n_views": len(corpus.views) - 1,
            },
        )


if __name__ == "__main__":
    script.run(main, snakemake)
