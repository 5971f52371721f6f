"""Extract every layer of a model at a checkpoint on a corpus and its views, in one pass.

If the file of the same pass lacks arrays, these alone are extracted.
"""

from contextlib import suppress
from pathlib import Path

from layerwise.errors import LayerwiseError
from layerwise.run import script


def main(job: script.Job) -> None:
    """Load the model, run the prompts, write the activations."""
    import torch

    from layerwise.activations.extract import extract
    from layerwise.corpora.prompts import read
    from layerwise.run.plan import extraction_of

    torch.set_num_threads(job.threads)
    model, revision, name = (job.names[kind] for kind in ("model", "revision", "corpus"))
    settings, target = extraction_of(job.config, model, name), Path(job.output[0])
    pass_key = job.plan.key("pass", **job.names)
    stay = arrays_of(target, job.key, pass_key)
    base = target if stay is not None and stay <= {*settings.arrays} else None
    lacking = tuple(array for array in settings.arrays if not (base and array in (stay or ())))
    corpus = read(Path(job.input.corpus), *job.files("views"))
    with script.open_model(job.plan, model, revision, settings) as loaded:
        extract(
            loaded,
            corpus=corpus.name,
            prompts=corpus.ids,
            views=corpus.views,
            settings=settings.model_copy(update={"arrays": lacking}),
            perturb=job.config.corpora[name].perturb,
            target=target,
            attributes={
                "key": job.key,
                "pass": pass_key,
                "corpus_sha256": corpus.hash,
                "n_views": len(corpus.views) - 1,
            },
            base=base,
        )


def arrays_of(path: Path, key: str, pass_key: str) -> set[str] | None:
    """The arrays that a file of the same pass has beside those of every file.

    None if there is no such file, or if it is made again under the same key.
    """
    from layerwise.activations.store import ARRAYS, BASE, Activations

    with suppress(LayerwiseError), Activations(path) as stored:
        if stored.attributes.get("pass") == pass_key and stored.attributes["key"] != key:
            return (stored.arrays & {*ARRAYS}) - {*BASE}
    return None


if __name__ == "__main__":
    script.run(main, snakemake)
