"""Extract every layer of a model at a checkpoint on a corpus and its views, in one pass.

If the file of the same pass lacks arrays, these alone are extracted.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from layerwise.errors import LayerwiseError
from layerwise.io.files import versions
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
    key_of_pass = job.plan.key("pass", **job.names)
    corpus = read(Path(job.input.corpus), *job.files("views"))
    with script.open_model(job.plan, model, revision, settings) as loaded:
        same = {
            "pass": key_of_pass,
            "weights_sha256": loaded.weights,
            "device": str(loaded.device),
            "versions": json.dumps(versions()),
        }
        stay = arrays_of(target, job.key, same)
        base = target if stay is not None and stay <= {*settings.arrays} else None
        lacking = tuple(name for name in settings.arrays if not (base and name in (stay or ())))
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
                "pass": key_of_pass,
                "corpus_sha256": corpus.hash,
                "n_views": len(corpus.views) - 1,
            },
            base=base,
        )


def arrays_of(path: Path, key: str, same: Mapping[str, str]) -> set[str] | None:
    """The arrays that a file of the same pass has beside those of every file.

    None if there is no such file, or if it is made again under the same key.

    Parameters
    ----------
    same : mapping
        Attributes that the file must have.
    """
    from layerwise.activations.store import ARRAYS, BASE, Activations

    with suppress(LayerwiseError), Activations(path) as stored:
        about = stored.attributes
        if about.get("key") != key and all(about.get(name) == same[name] for name in same):
            return (stored.arrays & {*ARRAYS}) - {*BASE}
    return None


if __name__ == "__main__":
    script.run(main, snakemake)
