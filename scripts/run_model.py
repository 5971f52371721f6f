"""Load a model at a checkpoint once, and do all that is due of it: extract every layer on the
corpora, and embed the texts of the tasks at every layer.

    python scripts/run_model.py --model minilm-l6
    python scripts/run_model.py --model minilm-l6 --corpus wikipedia
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from layerwise import cli

if TYPE_CHECKING:
    from pathlib import Path

    from layerwise.models.load import LoadedModel

log = logging.getLogger("layerwise")


def main(runs: list[cli.Run]) -> None:
    """Checkpoint by checkpoint: load the model, then one corpus or task after the other."""
    from layerwise.activations.extract import set_threads
    from layerwise.models.load import load

    set_threads(runs[0].threads)

    def checkpoint(run: cli.Run) -> tuple[str, str]:
        return run.names["model"], run.names["revision"]

    for (model, revision), group in itertools.groupby(runs, checkpoint):
        several = list(group)
        settings = several[0].config.extraction(model)
        loaded = load(
            model, several[0].loadable(model), revision,
            device=settings.device, dtype=settings.dtype,
        )  # fmt: skip
        seen = {}
        cli.each(
            several,
            lambda run, loaded=loaded, seen=seen: (
                extract(run, loaded) if "corpus" in run.names else embed(run, loaded, seen)
            ),
        )


def extract(run: cli.Run, loaded: LoadedModel) -> None:
    """Read a corpus and its views, write the activations."""
    from layerwise.activations import extract as extraction
    from layerwise.corpora.table import read_prompts

    corpus, views = read_prompts(run.input("corpus"), run.input("views"))
    extraction.extract(
        loaded,
        corpus=corpus.name,
        prompts=corpus.prompt_ids,
        views=[corpus.texts, *views],
        settings=run.config.extraction(loaded.name),
        perturb=run.config.corpora[corpus.name].perturb,
        target=run.files["activations"],
        attributes={"corpus_sha256": corpus.hash, "n_views": len(views), **run.stamp.facts()},
        is_chat=corpus.is_chat,
    )


def embed(run: cli.Run, loaded: LoadedModel, seen: dict[str, Path]) -> None:
    """Read a task's texts, write their embeddings.

    Texts of tasks that this job has embedded already are taken from there.

    Parameters
    ----------
    seen : dict
        The file that holds a text, by the text's key; this task's texts are added.
    """
    from layerwise.activations.embed import embed as embed_texts
    from layerwise.activations.embed import those_it_has
    from layerwise.files import provenance
    from layerwise.tasks import layout, prompts
    from layerwise.tasks.texts import read_texts

    task = run.names["task"]
    settings, scoring = run.config.extraction(loaded.name), run.config.scoring_of(loaded.name)
    asked = read_texts(run.input("texts"), task)
    own = prompts.of_model(run.loadable(loaded.name), loaded.revision)
    before = own.of(asked)
    pairs = prompts.pairs(asked, before)
    keys = list(pairs)
    new = [place for place, key in enumerate(keys) if key not in seen]
    log.info("%s: %d texts, %d of them not embedded yet", task, len(keys), len(new))
    for prompt_type, prompt in before.items():
        log.info("in front of %s: %r", prompt_type or "each text", prompt)
    readings = those_it_has(
        loaded, layout.readings(settings.tokens, scoring.poolings, scoring.readouts)
    )
    record = provenance(
        model=loaded.name,
        revision=loaded.revision,
        task=task,
        weights_sha256=loaded.weights,
        dtype=loaded.dtype,
        device=str(loaded.device),
        special_tokens=loaded.special_tokens,
        **({"prompts": before, "include_prompt": own.include_prompt} if before else {}),
        **run.stamp.facts(),
    )
    target = run.files["embeddings"]
    with layout.create(
        target,
        readings=readings,
        n_layers=loaded.anatomy.n_layers,
        texts_keys=keys,
        hidden=loaded.anatomy.hidden,
        attributes=record,
    ) as file:
        layout.copy_known(file, keys, seen)
        fresh = [pairs[keys[place]] for place in new]
        embed_texts(
            loaded, [text for _, text in fresh],
            lambda start, stop, slabs: layout.fill(file, new[start:stop], slabs),
            readings=readings, budget=settings.batch_tokens,
            prompts=[prompt for prompt, _ in fresh], include_prompt=own.include_prompt,
            sink_ratio=settings.sink_ratio,
        )  # fmt: skip
    seen.update(dict.fromkeys((keys[place] for place in new), target))


if __name__ == "__main__":
    cli.run_bundle("run_model", main, __doc__)
