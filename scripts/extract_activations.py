"""Extract every layer of a model at a checkpoint on a corpus and its views, in one pass."""

from __future__ import annotations

from pathlib import Path

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Load the model, run the prompts, write the activations."""
    import torch

    from layerwise.activations.extract import extract
    from layerwise.corpora.prompts import read

    torch.set_num_threads(arguments.threads)
    config = arguments.config
    settings = config.extraction(arguments.model, arguments.corpus)
    corpus = read(arguments.prompts, arguments.views)
    with script.open_model(
        arguments.plan, arguments.model, arguments.revision, settings
    ) as loaded:
        extract(
            loaded,
            corpus=corpus.name,
            prompts=corpus.ids,
            views=corpus.views,
            settings=settings,
            perturb=config.corpora[corpus.name].perturb,
            target=arguments.output,
            attributes={
                "key": arguments.key,
                "corpus_sha256": corpus.hash,
                "n_views": len(corpus.views) - 1,
            },
        )


if __name__ == "__main__":
    files = {"prompts": "corpus to read", "output": "HDF5 file to write"}
    options = script.parser(__doc__, "model", "revision", "corpus", stage="extract", **files)
    options.add_argument("--views", type=Path, nargs="?", help="views to read, if there are any")
    script.run(main, options)
