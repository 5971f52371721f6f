"""The authors' tables that ship with layerwise."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerwise import data
from layerwise.association.curves import ScoreCurves, metric_curves, score_curves
from layerwise.config.settings import OWN_TEXTS
from layerwise.io.tables import read_table
from papers import shapes
from papers.published import published_metrics, published_scores

PYTHIA, MAMBA, BERT = "Pythia-410m", "mamba-370m", "bert-base"
EMBEDDER = "LLM2Vec-mntp-unsup-simcse-8B"
SIZES = ("Pythia-14m", "Pythia-70m", "Pythia-160m", PYTHIA, "Pythia-1b")
METRICS = ("prompt_entropy", "dataset_entropy", "curvature", "infonce", "dime", "lidar")
LENSES = Path(__file__).parent / "lenses.csv"
"""Accuracies of MMLU, BLiMP and ToxiGen by layer, read from the authors' release: the first two
from the curves of its figures, ToxiGen from its files. States count as they do there."""
TEXTS = {
    "mteb/amazon_counterfactual": "AmazonCounterfactualClassification",
    "mteb/amazon_massive_intent": "MassiveIntentClassification",
    "mteb/amazon_massive_scenario": "MassiveScenarioClassification",
    "mteb/amazon_reviews_multi": "AmazonReviewsClassification",
    "mteb/arxiv-clustering-s2s": "ArxivClusteringS2S",
    "mteb/askubuntudupquestions-reranking": "AskUbuntuDupQuestions",
    "mteb/banking77": "Banking77Classification",
    "mteb/biorxiv-clustering-s2s": "BiorxivClusteringS2S",
    "mteb/biosses-sts": "BIOSSES",
    "mteb/emotion": "EmotionClassification",
    "mteb/medrxiv-clustering-s2s": "MedrxivClusteringS2S",
    "mteb/mind_small": "MindSmallReranking",
    "mteb/mtop_domain": "MTOPDomainClassification",
    "mteb/mtop_intent": "MTOPIntentClassification",
    "mteb/reddit-clustering": "RedditClustering",
    "mteb/scidocs-reranking": "SciDocsRR",
    "mteb/sickr-sts": "SICK-R",
    "mteb/stackexchange-clustering": "StackExchangeClustering",
    "mteb/stackoverflowdupquestions-reranking": "StackOverflowDupQuestions",
    "mteb/sts12-sts": "STS12",
    "mteb/sts13-sts": "STS13",
    "mteb/sts14-sts": "STS14",
    "mteb/sts15-sts": "STS15",
    "mteb/sts16-sts": "STS16",
    "mteb/sts17-crosslingual-sts": "STS17",
    "mteb/stsbenchmark-sts": "STSBenchmark",
    "mteb/toxic_conversations_50k": "ToxicConversationsClassification",
    "mteb/tweet_sentiment_extraction": "TweetSentimentExtractionClassification",
    "mteb/twentynewsgroups-clustering": "TwentyNewsgroupsClustering",
}
"""The task of each data set of the shipped metrics that holds a task's texts."""


class Release:
    """The shipped tables of one state of the release, read once."""

    def __init__(self, name: str = "released") -> None:
        self.name = name

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Tidy metrics."""
        return published_metrics(read_table(data.published("metrics", self.name)))

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Tidy scores, of mean pooling."""
        scores = published_scores(read_table(data.published("scores", self.name)))
        return scores[scores["pooling"] == "mean"]

    @cached_property
    def _curves(self) -> Any:
        by_layer = self.metrics.set_index("layer").sort_index()
        return by_layer.groupby(["model", "metric", "corpus", "revision"])["value"]

    def score(self, model: str, revision: str = "main") -> ScoreCurves:
        """Scores of a model at a checkpoint."""
        mine = (self.scores["model"] == model) & (self.scores["revision"] == revision)
        return score_curves(self.scores[mine])[0]

    def curve(
        self, model: str, metric: str, corpus: str = "wikitext", revision: str = "main"
    ) -> pd.Series[float]:
        """A metric by layer."""
        curve: pd.Series[float] = self._curves.get_group((model, metric, corpus, revision))
        return curve

    def own_texts(self, scores: ScoreCurves) -> Mapping[str, np.ndarray]:
        """Each metric on the texts of each task of a model, shape (t, n)."""
        found = metric_curves(self.metrics, scores, TEXTS)
        own = found.variants["corpus"] == OWN_TEXTS
        return dict(zip(found.variants["metric"][own], found.values[own], strict=True))

    def stream(self, model: str, metric: str, corpus: str = "wikitext") -> pd.Series[float]:
        """A metric by layer, without a state after the final norm."""
        rows = self.metrics[self.metrics["normed"]]
        normed = rows.loc[rows["model"] == model, "layer"].unique()
        return self.curve(model, metric, corpus).drop(normed, errors="ignore")

    def valley(self, model: str, corpus: str = "wikitext") -> float:
        """Depth of the valley of prompt entropy, without a state after the final norm."""
        entropy = self.stream(model, "prompt_entropy", corpus).to_numpy()
        return float(shapes.prominences(entropy).max())

    def lowest_layer(self, model: str, corpus: str = "wikitext") -> tuple[int, int]:
        """Layer of least prompt entropy before the last, and the last layer."""
        curve = self.curve(model, "prompt_entropy", corpus)
        return lowest(curve.iloc[:-1]), int(curve.index.max())

    def checkpoints(self) -> list[int]:
        """Steps of Pythia-410m that have metrics on WikiText, ascending."""
        rows = self.metrics["corpus"].eq("wikitext") & self.metrics["model"].eq(PYTHIA)
        steps = self.metrics.loc[rows, "revision"].str.extract(r"^step(\d+)$")[0].dropna()
        return sorted(map(int, steps.unique()))

    def stages(self, revision: str = "main") -> pd.DataFrame:
        """Effective ranks inside Pythia-410m: blocks as rows, sub-layers as columns."""
        rows = self.metrics["corpus"].eq("stages") & self.metrics["revision"].eq(revision)
        return self.metrics[rows].pivot(index="layer", columns="sublayer", values="value")

    def changes_of_rank(self, revision: str = "main") -> pd.DataFrame:
        """Change of the stream's log effective rank by the output of each sub-layer, by block.

        Columns ``mixer`` (attention) and ``mlp``; from block 2 on, since the release has no rank
        of the embeddings.
        """
        ranks = self.stages(revision).transform(np.log)
        before, between, after = ranks["block"].shift(), ranks["mixer_residual"], ranks["block"]
        return pd.DataFrame({"mixer": between - before, "mlp": after - between}).dropna()


def lowest(curve: pd.Series[float]) -> int:
    """Layer of the least value of a curve."""
    return int(curve.index.to_numpy()[curve.to_numpy().argmin()])


def lens_accuracies(benchmark: str, model: str, lens: str = "logit lens") -> np.ndarray:
    """Accuracy of each state of a model on a benchmark, in [0, 1]."""
    table = pd.read_csv(LENSES, float_precision="round_trip")
    wanted = {"benchmark": benchmark, "model": model, "lens": lens}
    rows = table[(table[list(wanted)] == list(wanted.values())).all(axis=1)]
    return rows.sort_values("state")["accuracy"].to_numpy()
