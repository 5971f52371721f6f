"""Load a model at a checkpoint once, and do all that is due of it: extract every layer on the
corpora, and embed the texts of the tasks at every layer.

    python scripts/run_model.py --model minilm-l6
    python scripts/run_model.py --model minilm-l6 --corpus wikipedia
"""

from __future__ import annotations

import itertools
import logging
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from layerwise import cli
from layerwise.errors import LayerwiseError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from layerwise.corpora.images import Picture
    from layerwise.models.load import LoadedModel
    from layerwise.tasks.layout import Known, Reading
    from layerwise.tasks.prompts import Prompts
    from layerwise.tasks.texts import TaskTexts
    from layerwise.workflow.stamps import Stamp

log = logging.getLogger("layerwise")

STARTED = time.monotonic()


def main(runs: list[cli.Run]) -> None:
    """Checkpoint by checkpoint: load the model, then one corpus or task after the other."""
    check_room(runs)
    from layerwise.activations.extract import set_threads
    from layerwise.models.load import load

    set_threads(runs[0].threads)

    def checkpoint(run: cli.Run) -> tuple[str, str]:
        return run.names["model"], run.names["revision"]

    clock, failures = Clock(), cli.Failures()
    for (model, revision), group in itertools.groupby(runs, checkpoint):
        several = list(group)
        settings = several[0].config.extraction(model)
        in_shards = [run for run in several if "shards" in run.inputs]
        for run in in_shards:
            with failures.of([run]):
                join(run)
        others = [run for run in several if run not in in_shards]
        if not others:
            continue
        with failures.of(others):
            loaded = load(
                model, several[0].loadable(), revision,
                device=settings.device, dtype=settings.dtype,
            )  # fmt: skip
            clock.note("start")
            texts = Texts(loaded, several[0])
            for run in others:
                with failures.of([run]):
                    extract(run, loaded) if "corpus" in run.names else texts.embed(run)
            clock.note("passes")
            clock.tell(model, revision)
    failures.tell(len(runs))


class Clock:
    """Where a job's time goes."""

    def __init__(self) -> None:
        self.last = STARTED
        self.spent = {"start": 0.0, "passes": 0.0}

    def note(self, what: str) -> None:
        """Count the time since the last note as spent on something."""
        now = time.monotonic()
        self.spent[what] += now - self.last
        self.last = now

    def tell(self, model: str, revision: str) -> None:
        """Log the times so far."""
        start, passes = self.spent["start"], self.spent["passes"]
        log.info(
            "%s %s: %.1f s to the first batch so far, %.1f s of passes and writing; the start is "
            "%.1f %%", model, revision, start, passes, 100 * start / (start + passes),
        )  # fmt: skip


def check_room(runs: list[cli.Run]) -> None:
    """Make sure that the disk has room for all that the job will write, as far as that is known.

    Raises
    ------
    LayerwiseError
        If it has not.
    """
    sizes = runs[0].plan.sizes
    # What is in shards already is only joined.
    runs = [run for run in runs if "shards" not in run.inputs]
    if not runs:
        return
    known = [
        size - written_already(run)
        for run in runs if (size := sizes.bytes_of(run.job)) is not None
    ]  # fmt: skip
    need = sum(known)
    folder = next(p for p in runs[0].files.values()).absolute()
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    log.info(
        "%d corpora and tasks: %.3g GB to write%s, %.3g GB free",
        len(runs), need / 1e9, "" if len(known) == len(runs) else " at least", free / 1e9,
    )  # fmt: skip
    if need > free:
        raise LayerwiseError(
            f"This job will write {need / 1e9:.1f} GB of activations and embeddings, and {folder} "
            f"has {free / 1e9:.1f} GB free; free some space, or give jobs.gigabytes and jobs.disk "
            "in the config smaller values."
        )


def written_already(run: cli.Run) -> int:
    """Bytes of the parts of a task's embeddings that an earlier try of the job has left."""
    from layerwise.tasks.layout import parts_in
    from layerwise.workflow import stamps

    if "embeddings" not in run.files:
        return 0
    there = [(path, stamps.read(path)) for path in parts_in(run.files["embeddings"])]
    return sum(p.stat().st_size for p, stamp in there if stamp and stamp.key == run.stamp.key)


def join(run: cli.Run) -> None:
    """Show the shards of a corpus as one file."""
    from layerwise.activations import shards

    shards.join(run.inputs["shards"], run.files["activations"], run.stamp.facts())


def extract(run: cli.Run, loaded: LoadedModel) -> None:
    """Read a corpus and its views, write the activations."""
    from layerwise.activations import extract as extraction
    from layerwise.corpora.prompts import read

    corpus = read(run.input("corpus"), run.input("views"))
    extraction.extract(
        loaded,
        corpus=corpus.name,
        prompts=corpus.ids,
        views=corpus.views,
        settings=run.config.extraction(loaded.name, corpus.name),
        perturb=run.config.corpora[corpus.name].perturb,
        target=run.files["activations"],
        attributes={
            "corpus_sha256": corpus.hash, "n_views": len(corpus.views) - 1, **run.stamp.facts()
        },
        is_chat=corpus.is_chat,
    )  # fmt: skip


class Texts:
    """Embeds the texts of tasks; those that lie there for other tasks are taken from there.

    Parameters
    ----------
    loaded : LoadedModel
    run : Run
        One of the model's at the checkpoint.
    """

    def __init__(self, loaded: LoadedModel, run: cli.Run) -> None:
        self.loaded, self.settings = loaded, run.config.extraction(loaded.name)
        self.scoring = run.config.scoring_of(loaded.name)
        self.prompts: Prompts | None = None
        self.known: Known | None = None
        self.center: npt.NDArray[Any] | None = None

    def embed(self, run: cli.Run) -> None:
        """Read a task's texts, write their embeddings, part by part."""
        from layerwise.activations.embed import those_it_has
        from layerwise.files import provenance
        from layerwise.tasks import layout, prompts
        from layerwise.tasks.texts import read_texts

        loaded, task = self.loaded, run.names["task"]
        asked = layout.readings(self.settings.tokens, self.scoring.poolings, self.scoring.readouts)
        readings = those_it_has(loaded, asked)
        target = run.files["embeddings"]
        if self.known is None:
            self.known, self.center = layout.known_in(
                target.parent, lambda attributes: same_but_texts(attributes, run.stamp)
            )
        listed = read_texts(run.input("texts"), task)
        if self.prompts is None:
            self.prompts = prompts.of_model(run.loadable(), loaded.revision)
        before = self.prompts.of(listed)
        for prompt_type, prompt in before.items():
            log.info("%s: in front of %s: %r", task, prompt_type or "each text", prompt)
        pairs = prompts.pairs(listed, before)
        pictures = pictures_of(run, listed)
        if pictures:
            pairs = {key: (prompt, pictures[text]) for key, (prompt, text) in pairs.items()}
        keys = list(pairs)
        # Half precision goes by texts that every model reads; images are stored whole.
        half = not pictures and len(keys) >= 50_000
        if half and self.center is None:
            self.center = self.center_of_probes(readings)
        shape = loaded.anatomy.n_layers, loaded.anatomy.hidden
        size = max(1, layout.PART_BYTES // layout.bytes_per_text(readings, *shape, half=half))
        starts = range(0, len(keys), size)
        record = provenance(
            model=loaded.name,
            revision=loaded.revision,
            task=task,
            parts=str(len(starts)),
            weights_sha256=loaded.weights,
            dtype=loaded.dtype,
            device=str(loaded.device),
            special_tokens=loaded.special_tokens,
            **(
                {"prompts": before, "include_prompt": self.prompts.include_prompt}
                if before
                else {}
            ),
            **run.stamp.facts(),
        )
        # The first part is the file that says that the task is done.
        for number in reversed(range(len(starts))):
            some = slice(starts[number], starts[number] + size)
            path = layout.part(target, number)
            if layout.is_part(path, record, keys[some]):
                log.info("%s: part %d of %d is there", task, number + 1, len(starts))
                continue
            with layout.create(
                path, readings=readings, n_layers=shape[0], texts_keys=keys[some],
                hidden=shape[1], attributes=record, center=self.center if half else None,
            ) as file:  # fmt: skip
                new = layout.copy_known(file, keys[some], self.known)
                log.info(
                    "%s: %d texts, %d of them not embedded yet", task, len(keys[some]), len(new)
                )
                self.run(
                    [pairs[keys[some][place]] for place in new], readings,
                    lambda start, stop, slabs, file=file, new=new: layout.fill(
                        file, new[start:stop], slabs
                    ),
                )  # fmt: skip
            self.known.update(dict.fromkeys((keys[some][row] for row in new), path))

    def run(
        self,
        pairs: Sequence[tuple[str, Any]],
        readings: Sequence[Reading],
        write: Callable[..., None],
    ) -> None:
        """Embed some texts, each with the prompt before it, or images."""
        from layerwise.activations.embed import embed

        embed(
            self.loaded, [text for _, text in pairs], write, readings=readings,
            budget=self.settings.batch_tokens, prompts=[prompt for prompt, _ in pairs],
            include_prompt=self.prompts is None or self.prompts.include_prompt,
            sink_ratio=self.settings.sink_ratio,
        )  # fmt: skip

    def center_of_probes(self, readings: Sequence[Reading]) -> npt.NDArray[Any]:
        """What half precision takes off each embedding."""
        from layerwise.tasks import layout

        found: list[Any] = []
        probes = [("", text) for text in layout.PROBES]
        self.run(probes, readings, lambda _start, _stop, slabs: found.append(slabs))
        slabs = [np.concatenate(several, axis=1) for several in zip(*found, strict=True)]
        return layout.center_of(slabs)


def pictures_of(run: cli.Run, listed: TaskTexts) -> dict[str, Picture]:
    """The images of a task by their hash; none of a task of texts."""
    from layerwise.corpora.images import Picture
    from layerwise.corpora.images_table import read_images

    if "corpus" in run.inputs:
        found = read_images(run.input("corpus"))[0]
    else:
        found = [
            Picture(f"{listed.task} {number}", data, None, listed.texts[number])
            for number, data in enumerate(listed.images)
        ]
    return {picture.sha256: picture for picture in found}


def same_but_texts(attributes: Mapping[str, Any], stamp: Stamp) -> bool:
    """Whether a file's embeddings were made as a job's would be, of whatever texts."""
    from layerwise.workflow.stamps import Stamp

    there = Stamp.of(attributes)
    if there is None:
        return False

    def how(recipe: Mapping[str, Any]) -> list[Any]:
        models = {
            path: key for path, key in recipe.get("inputs", {}).items()
            if not path.endswith(".texts.parquet")
        }  # fmt: skip
        return [
            models,
            *(recipe.get(part) for part in ("settings", "code", "outside", "libraries")),
        ]

    return how(there.recipe) == how(stamp.recipe)


if __name__ == "__main__":
    cli.run_bundle("run_model", main, __doc__)
