"""What each study adds to the plain extraction of a model, in processor time and in bytes.

The same prompts go through `extract` with its defaults, with what each study has kept besides, and
with all of it together; each once a round, and the fastest round of each counts. Time is this
process's own, on one thread, so that other programs touch it little. What passes of their own
cost (perturbed prompts, questions) is given a prompt or question. Studies that are not named here
read tables and embeddings that the plain extraction makes anyway. Printed, as a Markdown table:
seconds and bytes as multiples of the plain extraction's.

    python benchmarks/bench_studies.py --corpus results/corpora/wikipedia.parquet \\
        --model smollm2-135m results/converted/smollm2-135m/main
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Before torch: it sets what the scripts set.
import layerwise.cli  # isort: skip  # noqa: F401
import pandas as pd

from layerwise.activations.extract import extract, set_threads, token_ids
from layerwise.section import parse
from layerwise.config.corpora import Perturb
from layerwise.config.extraction import ExtractSettings
from layerwise.config.models import Model
from layerwise.config.token_tasks import ChoiceTask
from layerwise.models.load import LoadedModel, load
from layerwise.tasks.items import Question
from layerwise.tasks.lens import answer, lens_of
from layerwise.tasks.surprisal import measure as measure_surprisals

PARTS = ("input_norm", "mixer", "mixer_residual", "mlp_norm", "mlp")
SINKS = ("all", "drop_first", "drop_sinks")
PLAIN = ExtractSettings()
KEPT: dict[str, ExtractSettings] = {
    "sink_valley (`drop_sinks`)": ExtractSettings(tokens=SINKS),
    "along_sequence (`prefixes`)": ExtractSettings(prefixes=True),
    "block_parts (`sublayers`)": ExtractSettings(sublayers=PARTS),
    "all three": ExtractSettings(tokens=SINKS, prefixes=True, sublayers=PARTS),
}
PERTURBED = "extreme inputs, each strength (`perturb`)"
SURPRISAL = "prompt_groups (surprisal)"
CHOICES = "multiple choice (`token_tasks`), as many questions"
# As presets/findings.yaml has them: one prompt in so many, and one protocol.
FEW = 4
INSIDE = f"along_sequence and block_parts, of one prompt in {FEW}, protocol paper"
TOGETHER = f"plain, sink_valley, surprisal, the line above, four strengths of one prompt in {FEW}"


def seconds(loaded: LoadedModel, texts: list[str], views: int, settings: ExtractSettings,
            target: Path, perturb: Perturb | None = None) -> float:  # fmt: skip
    """Processor seconds of an extraction."""
    start = time.process_time()
    extract(
        loaded, corpus="bench", prompts=[str(i) for i in range(len(texts))],
        views=[texts] * (1 + views), settings=settings, target=target, attributes={},
        perturb=perturb,
    )  # fmt: skip
    return time.process_time() - start


def measure(
    loaded: LoadedModel, entry: Model, texts: list[str], views: int, repeats: int, folder: Path
) -> list[dict[str, Any]]:
    """Seconds and bytes of each, beside the plain extraction of the same prompts.

    Returns
    -------
    list of dict
        ``what``, ``seconds``, ``bytes``, and ``times`` and ``space`` as multiples of the plain
        extraction's; of passes of their own, of as many prompts or questions.
    """
    few = texts[: max(1, len(texts) // FEW)]
    inside = ExtractSettings(protocols=("paper",), prefixes=True, sublayers=PARTS)
    jobs: dict[str, Any] = {"plain extraction": (texts, views, PLAIN, None)}
    jobs |= {name: (texts, views, settings, None) for name, settings in KEPT.items()}
    jobs[INSIDE] = (few, 0, inside, None)
    jobs[PERTURBED] = (texts, 0, PLAIN, Perturb(repetition=0.5))
    best = dict.fromkeys(jobs, float("inf"))
    sizes: dict[str, int] = {}
    questions = [
        Question("", text, tuple(text.split()[:4]), 0) for text in texts if len(text.split()) > 4
    ]
    apart = {SURPRISAL: float("inf"), CHOICES: float("inf")}
    ids = token_ids(loaded, list(map(str, range(len(texts)))), texts)
    lens = lens_of(loaded, entry)
    task = parse(ChoiceTask, {"questions": {"package": "wikipedia"}})
    for _ in range(repeats):
        for name, (some, copies, settings, perturb) in jobs.items():
            target = folder / "bench.h5"
            best[name] = min(best[name],
                             seconds(loaded, some, copies, settings, target, perturb))  # fmt: skip
            sizes[name] = target.stat().st_size
        start = time.process_time()
        measure_surprisals(loaded, lens, list(map(str, range(len(texts)))), ids)
        apart[SURPRISAL] = min(apart[SURPRISAL], time.process_time() - start)
        start = time.process_time()
        answer(loaded, lens, task, questions, [])
        apart[CHOICES] = min(apart[CHOICES], time.process_time() - start)
    best |= apart
    sizes |= dict.fromkeys(apart, 0)
    sinks, plain = next(iter(KEPT)), "plain extraction"
    for found in (best, sizes):
        found[TOGETHER] = (
            found[sinks] + found[SURPRISAL] + found[INSIDE] + 4 / FEW * found[PERTURBED]
        )  # fmt: skip
    return [
        {"what": name, "seconds": best[name], "bytes": sizes[name],
         "times": best[name] / best[plain], "space": sizes[name] / sizes[plain]}
        for name in best
    ]  # fmt: skip


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="parquet with a column text")
    parser.add_argument("--model", nargs=2, required=True, metavar=("NAME", "FOLDER"))
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--views", type=int, default=0, help="copies of each prompt beside it")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    set_threads(1)
    name, place = arguments.model
    entry = parse(Model, {"source": {"folder": place}})
    loaded = load(name, entry, "main", device="cpu", dtype="float32")
    texts = pd.read_parquet(arguments.corpus)["text"].tolist()[: arguments.prompts]
    with tempfile.TemporaryDirectory() as folder:
        found = measure(loaded, entry, texts, arguments.views, arguments.repeats, Path(folder))
    sys.stdout.write(
        f"{len(texts)} prompts, {arguments.views} views, {name}\n\n"
        "| what | seconds | x plain | MB | x plain |\n|---|---|---|---|---|\n"
    )
    for row in found:
        sys.stdout.write(
            f"| {row['what']} | {row['seconds']:.1f} | {row['times']:.2f} "
            f"| {row['bytes'] / 1e6:.1f} | {row['space']:.2f} |\n"
        )


if __name__ == "__main__":
    main()
