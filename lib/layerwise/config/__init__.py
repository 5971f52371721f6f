"""The config: one pydantic model per section, with a description of every key.

Its JSON Schema is ``config.schema.json``. Checks that need more than one
section are in `layerwise.run.validate`.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from layerwise.config.corpora import Corpus, TaskTexts
from layerwise.config.models import Model
from layerwise.config.settings import (
    AssociationSettings,
    ExtractSettings,
    MetricsSettings,
    Published,
    ScoringSettings,
)
from layerwise.config.studies import Study
from layerwise.config.tasks import Tasks
from layerwise.errors import ConfigError
from layerwise.section import Name, Section, parse, read_yaml

__all__ = ["Config", "read_config"]


def _folder(path: str) -> str:
    """Refuse a folder that Snakemake would take for a pattern, or a shell for more than text."""
    if re.search(r"[{}]|^[~\s-]|\s$|//", path) or ".." in path or not PurePath(path).name:
        problem = "{path} cannot be the results folder; name one without '..', braces or '~'"
        raise PydanticCustomError("bad_name", problem, {"path": repr(path)})
    return path


Rules = Annotated[str, Field(pattern=r"^(.+\.smk|[A-Za-z_][\w.]*)$")]


class Config(Section):
    """Everything that a run does. Only `studies` is required; their models are in `models`."""

    model_config = ConfigDict(defer_build=True)

    results: Annotated[str, AfterValidator(_folder)] = "results"
    """Folder for all results."""
    models: dict[Name, Model] = {}
    """Models by name."""
    recipes: dict[Annotated[str, AfterValidator(_folder)], Rules] = {}
    """Folders whose files the workflow makes before others read them, with the rules that make
    them: a file of Snakemake rules (.smk), or a Python package that holds rules.smk."""
    published: dict[Name, Published] = {}
    """Published tables by name, in the schema of the authors' released results; studies draw them
    without a model."""
    corpora: dict[Name, Corpus] = {}
    """Corpora by name, of texts (source) or of a medium of an add-on (images, audio)."""
    tasks: Tasks = {}
    """Tasks by name: empty for a task of mteb, {folder: …} for one with local data, your own
    labels, or {task: …} for a class. A list of names is accepted."""
    extract: ExtractSettings = ExtractSettings()
    """Extraction: how models run, and what is kept."""
    metrics: MetricsSettings = MetricsSettings()
    """Metrics to compute."""
    scoring: ScoringSettings = ScoringSettings()
    """Scoring of layers on tasks."""
    association: AssociationSettings = AssociationSettings()
    """Association of metrics with task scores over layers."""
    studies: dict[Name, Study] = Field(min_length=1)
    """Figures and tables by name. Only what they need is computed."""

    @classmethod
    def of(cls, document: Any) -> Config:
        """Read a config from what YAML or JSON gave, and fill in the defaults.

        Raises
        ------
        ConfigError
            In one sentence: the key, what was expected, what was given, and how to fix it.
        """
        return parse(cls, document)._spread()

    def _spread(self) -> Config:
        """The config with each corpus of several perturbations as several corpora."""
        spread = {name: list(entry.spread(name)) for name, entry in self.corpora.items()}
        corpora: dict[str, Any] = {}
        for corpus, variants in spread.items():
            for name, entry in variants:
                if name in corpora:
                    problem = f"two corpora would be called {name!r}; change a name or a value."
                    raise ConfigError(f"corpora.{corpus}", problem, code="duplicate")
                corpora[name] = entry
        names = {corpus: [n for n, _ in variants] for corpus, variants in spread.items()}
        studies = {}
        for name, study in self.studies.items():
            named = [n for c in study.corpora or () for n in names.get(c, [c])]
            studies[name] = study.model_copy(update={"corpora": tuple(named) or None})
        return self.model_copy(update={"corpora": corpora, "studies": studies})

    @property
    def own_texts(self) -> dict[str, str]:
        """The corpora that hold a task's texts, with the task."""
        of_tasks = {
            name: entry.source.task
            for name, entry in self.corpora.items()
            if isinstance(entry.source, TaskTexts)
        }
        return {**of_tasks, **self.association.own_texts}

    def recipe_of(self, path: str) -> str | None:
        """The folder of `recipes` that holds a file or folder; None for any other path."""
        folders = (folder for folder in self.recipes if PurePath(path).is_relative_to(folder))
        return next(folders, None)

    def labels(self) -> dict[str, dict[str, float]]:
        """The perturbations of each perturbed corpus: ``{corpus: {repetition: 0.5}}``."""
        return {n: c.perturb.labels for n, c in self.corpora.items() if c.perturb is not None}

    def extraction(self, model: str, corpus: str | None = None) -> ExtractSettings:
        """`extract` for a model and a corpus, with the overrides of their entries."""
        section = self.models[model].override(self.extract)
        return section if corpus is None else self.corpora[corpus].override(section)

    def scoring_of(self, model: str) -> ScoringSettings:
        """`scoring` for a model, with the overrides of its entry."""
        return self.models[model].override(self.scoring)


def read_config(file: Path) -> Config:
    """Read a config from a YAML or JSON file.

    Parameters
    ----------
    file : Path

    Raises
    ------
    ConfigError
        As `Config.of`, and if the file is missing or invalid; it names the file.
    """
    try:
        return Config.of(read_yaml(file))
    except ConfigError as error:
        raise error.in_file(str(file)) from None
