"""Choose a layer of one model from plain texts.

One pass over the texts, the layer that each metric picks, how often random halves
of the texts pick the same, and what such picks have lost in models whose scores are known
(``record.csv``, made by ``scripts/compare_rules.py``). A layer other than the model's output is
recommended only if both hold: the texts agree on it, and such picks have been told to lose less
than the output in other models.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from layerwise.association import regret
from layerwise.association.choice import CONSENSUS, CONSENSUS_OF, pick_layers
from layerwise.association.recommendation import MAJORITY, NEAR, recommend
from layerwise.association.regret import LAST
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel
from layerwise.models.weights import likeness, sample_of
from layerwise.statistics.samples import STABLE

log = logging.getLogger(__name__)

FEWEST, FEW = 20, 100
"""Texts below which nothing is computed, and below which picks are called weak."""
HALVES = 12
"""Random halves of the texts."""
RECORD = Path(__file__).with_name("record.csv")
SAMPLES = Path(__file__).with_name("samples.json")
"""Some token embeddings of the record's models, of `layerwise.models.weights.sample_of`."""
ALIKE = 0.9
"""Likeness of two such samples beyond which two models count as one."""


@dataclass(frozen=True)
class Choice:
    """What the metrics say of a model, and what to make of it.

    Attributes
    ----------
    picks : DataFrame
        metric, better, layer, depth, refused (why a pick has no say), near (the share of random
        halves of the texts that pick a layer within a tenth of the depth).
    consensus, last_layer : int
    agreement : float
        Share of the metrics whose pick lies within a tenth of the depth of the consensus.
    steady : float
        Share of random halves of the texts whose own consensus lies there.
    n_texts : int
    record : DataFrame
        How each rule has done in other models (`layerwise.association.regret.compare`).
    layer : int or None
        The layer to use; None for the model's output.
    why : str
        What speaks against another layer than the output; empty if one is recommended.
    """

    picks: pd.DataFrame
    consensus: int
    last_layer: int
    agreement: float
    steady: float
    tokens: str
    n_texts: int
    record: pd.DataFrame
    layer: int | None
    why: str


def sample(texts: Sequence[str], most: int, seed: int = 0) -> list[str]:
    """The distinct texts that are not blank, or as many of them drawn by a seed.

    Raises
    ------
    LayerwiseError
        If there are fewer than `FEWEST`.
    """
    distinct = list(dict.fromkeys(text for text in texts if text.strip()))
    if len(distinct) < FEWEST:
        raise LayerwiseError(
            f"{len(distinct)} different texts came; a layer can be chosen from {FEWEST} or more, "
            "better some hundreds."
        )
    if len(distinct) <= most:
        return distinct
    drawn = np.random.default_rng(seed).permutation(len(distinct))[:most]
    return [distinct[place] for place in sorted(drawn)]


def choose(
    loaded: LoadedModel, texts: Sequence[str], *, tokens: str, threads: int = 1, seed: int = 0
) -> Choice:
    """Choose a layer without labels.

    Parameters
    ----------
    loaded : LoadedModel
    texts : sequence of str
        Of `sample`.
    tokens : {'all', 'drop_first', 'drop_sinks'}
        Which tokens count.

    Raises
    ------
    LayerwiseError
        If the texts give too few metrics.
    """
    from layerwise.activations.extract import extract
    from layerwise.activations.store import Activations
    from layerwise.association.stability import reasons_of, stability
    from layerwise.config.extraction import ExtractSettings
    from layerwise.config.metrics import MetricsSettings
    from layerwise.metrics.registry import directions
    from layerwise.metrics.sample_size import against_n_by_layer
    from layerwise.metrics.table import compute

    wanted = {metric: directions()[metric] for metric in without_views()}
    kept = MetricsSettings().model_copy(update={"metrics": tuple(wanted), "alphas": (1.0,)})
    read = ExtractSettings(tokens=(tokens,), protocols=("paper",), keep_states=0)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(prefix="layerwise-") as folder:
        path = Path(folder) / "texts.h5"
        extract(
            loaded, corpus="texts", prompts=[str(n) for n in range(len(texts))], views=[texts],
            settings=read, target=path, attributes={},
        )  # fmt: skip
        with Activations(path) as activations:
            metrics, _ = compute(activations, kept, threads)
            checked = stability(activations, kept, wanted, repeats=HALVES, seed=seed)
            why = reasons_of(checked, loaded.name, activations.revision, tokens)
            refused = {str(metric) for _, metric, _ in why}
            trusted = [m for m in wanted if m in CONSENSUS_OF and m not in refused]
            some = kept.model_copy(update={"metrics": tuple(trusted)})
            halves = against_n_by_layer(
                activations, some, range(activations.n_layers), (len(texts) // 2,), HALVES, seed
            )
    picks, chosen = recommend(metrics, wanted, model=loaded.name, tokens=tokens, stability=checked)
    near = checked.set_index("metric")["near"]
    picks["near"] = [float(near.get(metric, np.nan)) for metric in picks["metric"]]
    table = record_without(loaded.weights, loaded.name, sample_of(loaded.model))
    agreement = float(chosen["agreement"])  # type: ignore[arg-type]
    consensus, last = int(chosen["layer"]), int(chosen["last_layer"])  # type: ignore[call-overload]
    steady = steadiness(halves, wanted, consensus, last)
    against = _against(agreement, steady, table, len(texts))
    return Choice(
        picks, consensus, last, agreement, steady, tokens, len(texts), table,
        None if against else consensus, against,
    )  # fmt: skip


def steadiness(
    halves: pd.DataFrame, directions: Mapping[str, int], consensus: int, last_layer: int
) -> float:
    """Share of random halves of the texts whose own consensus lies near that of all of them.

    Parameters
    ----------
    halves : DataFrame
        Of `layerwise.metrics.sample_size.against_n_by_layer`: metrics that are not refused, on
        halves alone.
    """
    near = []
    for _, half in halves.groupby("repeat"):
        table = half.pivot(index="metric", columns="layer", values="value")
        rows = pd.DataFrame(
            {"corpus": "texts", "metric": table.index, "protocol": "paper", "alpha": np.nan,
             "normalization": "raw"}
        )  # fmt: skip
        picks = pick_layers(
            rows, table.to_numpy(dtype=float), table.columns.to_numpy(dtype=np.int64), directions
        )
        found = [p.layer for p in picks if p.variant["metric"] == CONSENSUS]
        near += [bool(found) and abs(found[0] - consensus) <= NEAR * last_layer]
    return float(np.mean(near))


def without_views() -> list[str]:
    """The metrics with a direction that need no augmented copies of the texts."""
    from layerwise.metrics.registry import all_metrics, directions

    known = all_metrics()
    return [m for m in directions() if known[m].min_views == 0]


def record_without(weights: str, name: str, sample: Sequence[float] = ()) -> pd.DataFrame:
    """How each rule has done on all tasks of the models of known scores, but for this one.

    It is told by its weights; by a sample of them, as the same model in another dtype or file, or
    tuned further, has another hash; or, as the weights behind published scores are not known, by
    the last part of its name.

    Parameters
    ----------
    weights : str
        Of `layerwise.models.weights.weights_hash`.
    sample : sequence of float
        Of `layerwise.models.weights.sample_of`.
    """
    found = pd.read_csv(RECORD, dtype={"weights": str}, keep_default_na=False)
    found["regret"] = found["regret"].astype(float)
    same = found["model"].str.casefold() == Path(name).name.casefold()
    same |= found["weights"] == weights[:12]
    samples: dict[str, list[float]] = json.loads(SAMPLES.read_text(encoding="utf-8"))
    same |= found["model"].isin(
        [model for model, known in samples.items() if likeness(sample, known) > ALIKE]
    )
    return regret.compare(found[~same])


def _against(agreement: float, steady: float, record: pd.DataFrame, n_texts: int) -> str:
    """What speaks against a layer other than the output; empty for nothing."""
    said = []
    if n_texts < FEW:
        said.append(f"{n_texts} texts are few")
    if agreement < MAJORITY:
        some = f"only {agreement:.0%}" if agreement else "none"
        said.append(f"{some} of the metrics pick a layer near the others'")
    if not steady >= STABLE:
        said.append(f"only {steady:.0%} of random halves of the texts have a consensus near it")
    mine = record[record["rule"] == CONSENSUS]
    told = len(mine) and mine[f"less_{LAST}"].iloc[0] > 0
    if not told or mine[f"corrected_{LAST}"].iloc[0] > 0.05:
        n = int(mine["n_models"].iloc[0]) if len(mine) else 0
        said.append(
            f"in {n} models of known scores such picks could not be told to lose less than the "
            "output"
        )
    return "; ".join(said)
