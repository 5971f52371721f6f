"""Stages of the workflow: tables that others published, and the similarity of layers."""

from pathlib import Path
from typing import Any

from layerwise.addons import stage
from layerwise.names import PATHS
from layerwise.run.plan import STAGES, Plan, Stage

stage("papers", rules=Path(__file__).with_name("rules.smk"))


def _published(plan: Plan, published: str) -> Any:
    entry = plan.config.published[published]
    files = [getattr(entry, table) for table in ("scores", "metrics")]
    return [plan.file_identity(file) if file else None for file in files]


def _similarity(plan: Plan, study: str) -> Any:
    return [plan.config.studies[study].tokens, plan.input_keys(study, ("activations",))]


STAGES["published"] = Stage(
    3,
    ("published",),
    _published,
    (),
    "import_published",
    ("published/{published}.metrics.parquet", "published/{published}.scores.parquet"),
)
STAGES["similarity"] = Stage(
    2, ("study",), _similarity, (), "similarity", (PATHS["similarities"],)
)
