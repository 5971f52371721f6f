"""Scores of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import task_data
from cases import CASES, SHARED, Case, place
from helpers import tiny
from helpers.articles import wikipedia as invented
from of_models import entry, model

from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.config.tasks import LabelledEntry
from layerwise.models.load import load
from layerwise.tasks.evaluate import evaluate
from layerwise.tasks.labelled import LabelledTask
from layerwise.tasks.mteb_task import MtebTask
from papers.choice import ChoiceTask
from papers.questions import FileQuestions
from quickstart import tasks as quickstart

READ = ("tokens", "pooling", "readout")
SCORE = (*READ, "layer", "subset", "split")
# mteb rounds to six decimals.
SCORES = ("main_score", "score_low", "score_high", "n_runs")


@cache
def task_folder(task: str) -> Path:
    """The folder of a task's data."""
    if task in quickstart.TYPES:
        root = place("tasks/quickstart")
        chosen = quickstart.passages_of(invented(articles=16, paragraphs=12))
        quickstart.make_task(root / task, chosen)
        return root / task
    if task == "NFCorpus":
        return task_data.retrieval(place(f"tasks/{task}"))
    if task == "CIFAR10":
        return task_data.images(place(f"tasks/{task}"))
    folder = SHARED / "tasks" / task
    if not folder.is_dir():
        pytest.skip("the folder 'shared' with real data is not next to the checkout")
    return folder


def evaluated(
    task: Any,
    loaded: Any,
    of_model: Any,
    readings: Sequence[tuple[str, str, str]] = (("all", "mean", "residual"),),
    *,
    normalize: bool = True,
) -> pd.DataFrame:
    """The table of scores of a task, `of_model` being the model's entry."""
    tokens, poolings, readouts = (tuple(dict.fromkeys(of)) for of in zip(*readings, strict=True))
    root = place("evaluated") / str(len(list(place("evaluated").iterdir())))
    evaluate(
        lambda: replace(loaded, entry=of_model),
        {"task": task},
        extraction=ExtractSettings(tokens=tokens),
        scoring=ScoringSettings(poolings=poolings, readouts=readouts, normalize=normalize),
        keys={"task": "0"},
        key="0",
        output=root / "scores.parquet",
    )
    return pd.read_parquet(root / "scores.parquet")


def mteb_scores(
    task: str,
    family: str,
    readings: Sequence[tuple[str, str, str]],
    *,
    normalize: bool = True,
    prompt: tuple[dict[str, str], bool] | None = None,
) -> pd.DataFrame:
    """Scores of a task of mteb's at every layer."""
    of_model = entry(family)
    if prompt:
        of_model = of_model.model_copy(update={"prompts": prompt[0], "include_prompt": prompt[1]})
    found = evaluated(
        MtebTask(task, str(task_folder(task)), quickstart.TYPES.get(task)),
        model(family),
        of_model,
        readings,
        normalize=normalize,
    )
    return scores_shown(found)


def scores_shown(table: pd.DataFrame) -> pd.DataFrame:
    return table[[*SCORE, *SCORES]]


PLAIN = ("all", "mean", "residual")
NORMED = ("all", "mean", "final_norm")
ALL_READINGS = [
    (tokens, pooling, readout)
    for tokens in ("all", "drop_first")
    for pooling in ("mean", "weighted_mean", "last_token")
    for readout in ("residual", "final_norm")
]


@cache
def own_table(kind: str, normalize: bool) -> pd.DataFrame:
    """The table of scores of a labelled task."""
    path = task_data.labelled(kind, place("labels"))
    more = {"group": "by"} if kind == "regression" else {}
    task = LabelledTask(LabelledEntry(file=str(path), kind=kind, **more))
    readings = [PLAIN, NORMED, ("drop_first", "mean", "residual")]
    return evaluated(task, model("llama"), entry("llama"), readings, normalize=normalize)


def own_scores(kind: str, normalize: bool = True) -> pd.DataFrame:
    table = own_table(kind, normalize)
    return scores_shown(table).assign(chance=table["chance"])


# Columns of probes, with their names in the golden tables.
PROBED = {
    "main_score": "linear",
    "score_low": "low",
    "score_high": "high",
    "neighbours": "neighbours",
    "neighbours_low": "neighbours_low",
    "neighbours_high": "neighbours_high",
    "control": "control",
    "selectivity": "selectivity",
    "baseline": "chance",
    "n_train": "n_train",
    "n_runs": "n_test",
}


def own_probes(kind: str) -> pd.DataFrame:
    table = own_table(kind, True).drop(columns="chance").rename(columns=PROBED)
    return table[[*READ, "layer", *PROBED.values()]]


def choices(shots: int) -> pd.DataFrame:
    """Multiple-choice questions answered at each layer by the logit lens."""
    of_model = tiny.entry(task_data.causal(place("causal")))
    asked = task_data.questions(place("questions"), 24, 31)
    shown = task_data.questions(place("questions"), 3, 32)
    task = ChoiceTask(
        questions=FileQuestions(file=str(asked), examples=str(shown)), shots=shots, sample=20
    )
    loaded = load("causal", of_model, "main", device="cpu")
    table = evaluated(task, loaded, of_model)
    return table[[*SCORE, *SCORES, "chance"]]


CASES |= {
    "evaluate.classification": Case(
        partial(mteb_scores, "PangLeePolarity", "llama", [PLAIN, NORMED]), SCORE
    ),
    "evaluate.classification_raw": Case(
        partial(mteb_scores, "PangLeePolarity", "llama", [PLAIN], normalize=False), SCORE
    ),
    "evaluate.clustering": Case(
        partial(mteb_scores, "WikipediaArticleClustering", "llama", [PLAIN, NORMED]), SCORE
    ),
    "evaluate.pairs": Case(
        partial(mteb_scores, "WikipediaArticlePairs", "llama", [PLAIN, NORMED]), SCORE
    ),
    "evaluate.reranking": Case(
        partial(mteb_scores, "WikipediaArticleReranking", "llama", [PLAIN, NORMED]), SCORE
    ),
    "evaluate.retrieval": Case(partial(mteb_scores, "NFCorpus", "llama", [PLAIN, NORMED]), SCORE),
    "evaluate.retrieval_prompts": Case(
        partial(
            mteb_scores,
            "NFCorpus",
            "llama",
            [PLAIN, NORMED],
            prompt=({"query": "quick fox: ", "document": "lazy dog: "}, False),
        ),
        SCORE,
    ),
    "evaluate.sts": Case(
        partial(mteb_scores, "LeeNewsSimilarity", "llama", ALL_READINGS), SCORE, atol=1e-5
    ),
    "evaluate.sts_minilm": Case(partial(mteb_scores, "BIOSSES", "minilm", [PLAIN, NORMED]), SCORE),
    "evaluate.images": Case(
        partial(mteb_scores, "CIFAR10", "vit", [PLAIN, ("class", "mean", "final_norm")]), SCORE
    ),
    "evaluate.own_classes": Case(partial(own_scores, "classification"), SCORE),
    "evaluate.own_classes_raw": Case(partial(own_scores, "classification", False), SCORE),
    "evaluate.own_numbers": Case(partial(own_scores, "regression"), SCORE),
    "evaluate.own_pairs": Case(partial(own_scores, "pairs"), SCORE),
    "evaluate.own_tags": Case(partial(own_scores, "tags"), SCORE),
    "evaluate.probes_classes": Case(partial(own_probes, "classification"), (*READ, "layer")),
    "evaluate.probes_numbers": Case(partial(own_probes, "regression"), (*READ, "layer")),
    "evaluate.probes_tags": Case(partial(own_probes, "tags"), (*READ, "layer")),
    "evaluate.choices": Case(partial(choices, 0), SCORE),
    "evaluate.choices_shots": Case(partial(choices, 2), SCORE),
}
