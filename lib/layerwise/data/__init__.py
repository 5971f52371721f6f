"""Data that ship with layerwise."""

from __future__ import annotations

from pathlib import Path

RELEASED = {"released": "", "released_2024": "_2024"}
"""Names of the shipped tables where the section `published` of a config asks for a path, with the
end of their files' names."""

PUBLISHED = Path(__file__).parent / "published"
"""Folder of the shipped tables of Skean et al. 2025; its README names the sources."""


def published(table: str, name: str = "released") -> Path:
    """Path of a shipped table: ``scores`` or ``metrics``, of 2025 or as they were in 2024."""
    return PUBLISHED / f"{table}{RELEASED[name]}.parquet"


RELEASED_TEXTS = {
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
