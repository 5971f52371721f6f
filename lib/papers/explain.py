"""Explain why a run's scores differ from others: rescore a task in the ways that people differ in.

The model is run with the run's own settings, and once for each change of one setting (prefix,
maximum length, precision). Each pass is read with all token selections, poolings and readouts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd
import torch
from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]

from layerwise.errors import LayerwiseError, check_name, in_any_case
from layerwise.models.load import LoadedModel
from layerwise.models.states import States
from layerwise.models.texts import Texts
from layerwise.run import script
from layerwise.run.plan import Plan
from layerwise.tasks.evaluate import score_tasks
from layerwise.tasks.results import TaskScores
from layerwise.tasks.task import ModelPrompts, Task, set_up, texts_of
from layerwise.vocabulary import FINAL_NORM, POOLINGS, SCORED_READOUTS, TOKENS
from papers.published import MAIN, differences

log = logging.getLogger(__name__)

LENGTHS = (128, 256, 512, 1024, 2048, None)
DTYPES = ("float32", "bfloat16", "float16")
USUAL = {"tokens": "all", "pooling": "mean", "readout": FINAL_NORM}


@dataclass(frozen=True)
class Pass:
    """The settings of one pass of the model.

    Attributes
    ----------
    special_tokens : bool
        True to add the tokenizer's special tokens.
    first : str
        Text of a token in front of every text; empty for none.
    max_length : int or None
        Maximum length in tokens; None for the model's limit.
    dtype : str
    """

    special_tokens: bool
    first: str
    max_length: int | None
    dtype: str

    @property
    def columns(self) -> dict[str, str]:
        """The settings in words, for the table."""
        prefix = "special tokens" if self.special_tokens else "no special tokens"
        return {
            "prefix": f"{self.first} in front" if self.first else prefix,
            "max_length": str(self.max_length or "model's limit"),
            "dtype": self.dtype,
        }


@dataclass(frozen=True)
class _Prefixed(ModelPrompts):
    """Prompts with a token in front of each."""

    first: str = ""

    def of(self, name: str, task: Task, prompt_type: str) -> str:
        return self.first + super().of(name, task, prompt_type)


def explain(
    plan: Plan, model: str, task: str, other: pd.DataFrame, revision: str | None = None
) -> pd.DataFrame:
    """Rescore a task in every variant and compare each with other scores.

    Parameters
    ----------
    plan : Plan
        Of the run whose scores differ.
    model : str
        A model of the run's config, in upper or lower case.
    task : str
        One of its tasks.
    other : DataFrame
        Scores to meet, from `papers.published.read_scores`.
    revision : str, optional
        Checkpoint of the run; by default the only one, or ``main``.

    Returns
    -------
    DataFrame
        Row per variant: prefix, max_length, dtype, tokens, pooling, readout; difference (mean
        absolute difference over layers, in percentage points), n_layers, and n_changes (number of
        settings that differ from the run's). First those with scores at most layers, of these the
        nearest, and of equally near ones those with the fewest changes.

    Raises
    ------
    LayerwiseError
        If the run's config has no such model, checkpoint or task; if `other` has no scores of the
        task; or if the run's own settings fail.
    """
    models = plan.config.models
    model = in_any_case(model, models)
    check_name("model of the run's config", model, models)
    revisions = models[model].revisions
    if revision is None:
        revision = MAIN if MAIN in revisions else revisions[0]
        if revision != MAIN and len(revisions) > 1:
            raise LayerwiseError(
                f"The run has several revisions of {model} ({', '.join(revisions)}); name one.",
                code="ambiguous",
            )
    check_name(f"revision of {model}", revision, revisions)
    check_name("task of the run", task, plan.tasks[model, revision])
    check_name("task of the other scores", task, other["task"].unique())
    entry = models[model]
    own = Pass(entry.special_tokens, "", entry.max_length, plan.config.extraction(model).dtype)
    rescore = _Rescore(plan, model, revision, task, other[other["task"] == task])
    rows, changes = rescore.run(own)
    for change in changes:
        try:
            rows += rescore.run(change)[0]
        except LayerwiseError as error:
            log.warning("not tried: %s: %s", ", ".join(change.columns.values()), error)
    table = pd.DataFrame(rows)
    usual = own.columns | USUAL
    table["n_changes"] = (table[list(usual)] != list(usual.values())).sum(axis=1)
    table["difference"] = table["difference"].round(4)
    # A layer without a score in a variant is a difference that has no size.
    order = {"n_layers": False, "difference": True, "n_changes": True}
    return table.sort_values([*order], ascending=[*order.values()], ignore_index=True)


def described(table: pd.DataFrame, task: str) -> str:
    """Name the nearest variant in one sentence.

    Parameters
    ----------
    table : DataFrame
        From `explain`.
    """
    best, *_ = rows = table.to_dict("records")
    own = min(rows, key=lambda row: row["n_changes"])
    size = f"{best['difference']:.2f} points, the mean over {best['n_layers']} layers"
    if best["n_changes"] == 0:
        return f"Of {len(table)} variants, the run's own is nearest on {task} ({size})."
    names = [name for name in table if name not in ("difference", "n_layers", "n_changes")]
    changed = [f"{n} {best[n]} (not {own[n]})" for n in names if best[n] != own[n]]
    return (
        f"Of {len(table)} variants, {', '.join(changed)} is nearest on {task} ({size}; the run's "
        f"own: {own['difference']:.2f})."
    )


@dataclass(frozen=True)
class _Rescore:
    """A model's task, and the scores that its variants are compared with."""

    plan: Plan
    model: str
    revision: str
    task: str
    other: pd.DataFrame

    def run(self, settings: Pass) -> tuple[list[dict[str, object]], list[Pass]]:
        """Rows of the table from one pass, and the passes that differ in one setting."""
        config = self.plan.config
        extraction = config.extraction(self.model).model_copy(update={"dtype": settings.dtype})
        update = {"special_tokens": settings.special_tokens, "max_length": settings.max_length}
        entry = config.models[self.model].model_copy(update=update)
        config = config.model_copy(update={"models": {**config.models, self.model: entry}})
        task = script.task_of(self.plan, self.task)
        torch.set_num_threads(extraction.threads)
        with script.open_model(Plan(config), self.model, self.revision, extraction) as loaded:
            poolings = tuple(name for name in POOLINGS if name != "cls" or _has_cls(loaded))
            scoring = config.scoring_of(self.model).model_copy(
                update={"poolings": poolings, "readouts": SCORED_READOUTS}
            )
            tokens = tuple(name for name in TOKENS if _has(loaded, name))
            setup = set_up(loaded, extraction.model_copy(update={"tokens": tokens}), scoring)
            prompts = _Prefixed(
                setup.prompts.by_name, setup.prompts.include_prompt, settings.first
            )
            threads, taken = config.scoring.threads, list[TaskScores]()
            pool = get_reusable_executor(threads) if threads > 1 else None
            setup = replace(setup, prompts=prompts)
            score_tasks(setup, {self.task: task}, taken.append, pool, threads)
            changes = list(_changes(settings, loaded, task))
        return [settings.columns | row for row in self._rows(taken[0])], changes

    def _rows(self, scored: TaskScores) -> Iterator[dict[str, object]]:
        """Each representation's distance from the other scores."""
        scores = pd.DataFrame(
            (self.task, way, each.subset, layer, each.main_score)
            for (layer, way), found in scored.scores.items()
            for each in found
        )
        scores.columns = pd.Index(["task", "way", "subset", "layer", "main_score"])
        scores = scores.astype({"main_score": float})
        for way, part in scores.groupby("way"):
            both = differences(part.drop(columns="way"), self.other)
            size = both["difference"].abs().dropna()
            representation = scored.representations[int(str(way))]._asdict()
            yield representation | {"difference": size.mean(), "n_layers": len(size)}


def _has(loaded: LoadedModel, tokens: str) -> bool:
    """True if a model has the tokens of a selection."""
    try:
        loaded.check_tokens([tokens])
    except LayerwiseError:
        return False
    return True


def _has_cls(loaded: LoadedModel) -> bool:
    """True unless a model's first token is one of the text, or has not seen the text."""
    reader = loaded.reader
    return not isinstance(reader, Texts) or reader.tokenizer.cls_token is not None


def _changes(own: Pass, loaded: LoadedModel, task: Task) -> Iterator[Pass]:
    """Passes that differ from a model's own in one setting, and that can change its vectors."""
    if isinstance(loaded.reader, Texts):
        texts, tokenizer = loaded.texts, loaded.texts.tokenizer
        ids, n_cut = texts.prompts(texts_of(task))
        with_special, without = (
            tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False)
        )
        if with_special != without:
            yield replace(own, special_tokens=not own.special_tokens)
        if tokenizer.bos_token and tokenizer.bos_token_id not in with_special:
            yield replace(own, first=tokenizer.bos_token)
        longest = max(len(kept) + cut for kept, cut in zip(ids, n_cut, strict=True))
        for length in LENGTHS:
            is_shorter = length is not None and length < min(longest, texts.max_length)
            # A longer limit than the config's may still be one that the model has.
            is_longer = own.max_length and any(n_cut) and (length or longest) > own.max_length
            if is_shorter or is_longer:
                yield replace(own, max_length=length)
    if not isinstance(loaded.reader, States):
        for dtype in DTYPES:
            if dtype != own.dtype:
                yield replace(own, dtype=dtype)
