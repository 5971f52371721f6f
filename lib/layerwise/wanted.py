"""From a config to the files that its studies want.

Nothing here imports Snakemake, torch or transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerwise.figures.kinds import NEEDS, OVER_CHECKPOINTS, WITH_ASSOCIATIONS, WITH_CHOICES
from layerwise.paths import encode

JsonMap = Mapping[str, Any]


class Wanted:
    """What the studies of one config want. Names are as in the config; paths as they are."""

    def __init__(self, config: JsonMap) -> None:
        self.config = config
        self.results = Path(str(config["results"]))

    def study(self, name: str) -> dict[str, Any]:
        """A study's entry with its models, corpora and tasks spelled out."""
        entry = dict(self.config["studies"][name])
        for key in ("models", "corpora", "tasks"):
            if entry.get(key) is None:
                entry[key] = list(self.config[key])
        return entry

    def points(self, study: str) -> list[tuple[str, str]]:
        """The (model, revision) pairs of a study."""
        entry = self.study(study)
        wanted = entry["revisions"]
        if wanted is None and entry["kind"] in OVER_CHECKPOINTS:
            wanted = "all"
        return [(m, r) for m in entry["models"] for r in self._revisions(m, wanted)]

    def study_settings(self, study: str) -> dict[str, Any]:
        """A study's entry as the drawing script gets it: revisions by name, or None."""
        entry = dict(self.config["studies"][study])
        del entry["published"]
        if entry["revisions"] in (None, "last"):
            return {**entry, "revisions": None}
        revisions = list(dict.fromkeys(r for _, r in self.points(study)))
        return {**entry, "revisions": revisions}

    def needs(self, study: str) -> tuple[str, ...]:
        """The tables that a study's kind needs: metrics, scores, associations, prompts."""
        return NEEDS[self.config["studies"][study]["kind"]]

    def tables(self, study: str, name: str) -> list[str]:
        """The files of one of those tables."""
        published = self.config["studies"][study]["published"]
        if published and name in ("metrics", "scores"):
            return [self.path("published", f"{encode(published)}.{name}.parquet")]
        if name == "metrics":
            return self.metrics_files(study)
        if name == "prompts":
            tables = self.metrics_files(study)
            return [t.removesuffix(".parquet") + ".prompts.parquet" for t in tables]
        if name == "scores":
            return self.scores_files(study)
        return [self.path("associations", f"{encode(study)}.parquet")]

    def targets(self) -> list[str]:
        """Every file that the studies of the config ask for."""
        wanted = []
        for study in self.config["studies"]:
            name = encode(study)
            wanted += [self.path("figures", f"{name}.{s}") for s in ("png", "pdf")]
            wanted.append(self.path("tables", f"{name}.csv"))
            if self.config["studies"][study]["kind"] in WITH_ASSOCIATIONS:
                wanted.append(self.path("associations", f"{name}.parquet"))
            if self.config["studies"][study]["kind"] in WITH_CHOICES:
                wanted += [self.path("choices", f"{name}.{s}") for s in ("parquet", "csv")]
        wanted += [self.path("nano", encode(model), "losses.csv") for model in self.config["nano"]]
        if self.sweep_activations():
            wanted.append(self.path("report", "weights.csv"))
        if self.all_scores():
            wanted.append(self.path("report", "best_layers.csv"))
        return wanted

    def sweep_activations(self) -> list[str]:
        """Files that tell the weights of models with several checkpoints, in order of training.

        All activations files that are wanted; of a checkpoint that has none, one embeddings file.
        """
        found: dict[tuple[str, str], dict[str, None]] = {}
        for study, entry in self.config["studies"].items():
            of_metrics = {"metrics", "prompts", "associations"} & set(self.needs(study))
            if of_metrics and not entry["published"]:
                for m, r in self.points(study):
                    for c in self.study(study)["corpora"]:
                        file = self.path("activations", encode(m), encode(r), f"{encode(c)}.h5")
                        found.setdefault((m, r), {})[file] = None
        for m, r, t in self._scored():
            if (m, r) not in found:
                file = self.path("embeddings", encode(m), encode(r), f"{encode(t)}.h5")
                found[m, r] = {file: None}
        return [
            file
            for m, model in self.config["models"].items()
            if len(model["revisions"]) > 1
            for r in model["revisions"]
            for file in found.get((m, r), ())
        ]

    def all_scores(self) -> list[str]:
        """The score tables of all studies of the config's own models, each once."""
        return [self.scores_file(m, r, t) for m, r, t in self._scored()]

    def _scored(self) -> list[tuple[str, str, str]]:
        own = [
            study
            for study, entry in self.config["studies"].items()
            if "scores" in self.needs(study) and not entry["published"]
        ]
        return list(
            dict.fromkeys(
                (m, r, t)
                for study in own
                for m, r in self.points(study)
                for t in self.study(study)["tasks"]
            )
        )

    def _revisions(self, model: str, wanted: Any) -> list[str]:
        known = list(self.config["models"][model]["revisions"])
        if wanted is None or wanted == "last":
            return known[-1:]
        if wanted == "all":
            return known
        return [r for r in known if r in wanted]

    def metrics_files(self, study: str) -> list[str]:
        """The metrics tables that a study reads."""
        corpora = self.study(study)["corpora"]
        return [
            self.path("metrics", encode(m), encode(r), f"{encode(c)}.parquet")
            for m, r in self.points(study)
            for c in corpora
        ]

    def scores_files(self, study: str) -> list[str]:
        """The score tables that a study reads."""
        tasks = self.study(study)["tasks"]
        return [self.scores_file(m, r, t) for m, r in self.points(study) for t in tasks]

    def scores_file(self, model: str, revision: str, task: str) -> str:
        """The score table of a model at a revision on a task."""
        return self.path("scores", encode(model), encode(revision), f"{encode(task)}.parquet")

    def path(self, *parts: str) -> str:
        """A path below the results folder."""
        return str(self.results.joinpath(*parts))
