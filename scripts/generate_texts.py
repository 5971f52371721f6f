"""Let a model answer the prompts of a corpus in its chat template, by greedy decoding."""

from __future__ import annotations

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Load the model, write its texts."""
    from layerwise.activations.extract import set_threads
    from layerwise.models.generate import write_texts

    set_threads(arguments.threads)
    config = arguments.config
    source = script.fetched_corpus(arguments.plan, arguments.corpus).source
    model = source.generate.model
    revision, extraction = config.models[model].revisions[-1], config.extraction(model)
    write_texts(
        arguments.output,
        source,
        script.entry_of(config, model, revision),
        revision,
        device=extraction.device,
        dtype=extraction.dtype,
        key=arguments.key,
    )


if __name__ == "__main__":
    output = "table of texts to write"
    script.run(main, script.parser(__doc__, "corpus", stage="generate", output=output))
