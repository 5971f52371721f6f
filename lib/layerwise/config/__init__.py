"""The config: read once, checked once, typed.

One model a section, with a description of every key; the JSON Schema in
``workflow/schemas/config.schema.yaml`` is made from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from layerwise.config.association import AssociationSettings
from layerwise.config.base import Distinct, Name, Section, one_of, parse
from layerwise.config.corpora import CorpusSettings
from layerwise.config.extraction import ExtractSettings
from layerwise.config.images import ImageCorpus
from layerwise.config.jobs import JobsSettings
from layerwise.config.metrics import MetricsSettings
from layerwise.config.models import Model, Nano
from layerwise.config.own_tasks import OwnTask
from layerwise.config.published import Published
from layerwise.config.reading import plain, read_yaml
from layerwise.config.scoring import ScoringSettings
from layerwise.config.studies import Study
from layerwise.config.tasks import listed
from layerwise.config.token_tasks import TokenTask
from layerwise.errors import LayerwiseError

__all__ = ["Config", "read_config"]


Corpus = Annotated[
    Annotated[CorpusSettings, Tag("source")] | Annotated[ImageCorpus, Tag("images")],
    one_of("source", "images"),
]
"""A corpus of texts or of images, told apart by its key."""


class Config(Section):
    """What a run does. Every key but `studies` has a default; studies of one's own models need
    `models` too."""

    results: str = Field(
        "results", min_length=1, description="Folder that everything is written to."
    )
    libraries: Literal["note", "rerun"] = Field(
        "note",
        description="What becomes of files that were made by other versions of the libraries "
        "that compute them: note, they stay, and a figure made from several versions says so; "
        "rerun, they are made again.",
    )
    models: dict[Name, Model] = Field(
        {}, description="The models, by the name that figures and paths show."
    )
    nano: dict[Name, Nano] = Field(
        {},
        description="Small models that the workflow trains itself; each is also listed in "
        "`models`.",
    )
    published: dict[Name, Published] = Field(
        {},
        description="Tables from elsewhere, in the schema of the authors' released results, by "
        "name; studies can draw them without running a model.",
    )
    corpora: dict[Name, Corpus] = Field(
        {}, description="The corpora, by name: of texts (source) or of images (images)."
    )
    tasks: Distinct[Name] = Field(
        (),
        description="MTEB tasks by name, the quickstart's own included; or a mapping from names "
        "to what they are: nothing, {folder: …}, or an entry of own_tasks or token_tasks.",
    )
    task_folders: dict[str, str] = Field(
        {},
        description="Local folders that hold a task's data in MTEB's own schema, in place of the "
        "hub, by task.",
    )
    token_tasks: dict[Name, TokenTask] = Field(
        {},
        description="Tasks that are scored from token states, in a pass of their own; each is "
        "also listed in `tasks`.",
    )
    own_tasks: dict[Name, OwnTask] = Field(
        {},
        description="Tasks made of one's own labels in local files; each is also listed in "
        "`tasks`.",
    )
    extract: ExtractSettings = Field(ExtractSettings(), description="How models are run.")
    metrics: MetricsSettings = Field(
        MetricsSettings(),
        description="Which metrics are computed of the activations, and how. All come from one "
        "extraction.",
    )
    scoring: ScoringSettings = Field(
        ScoringSettings(), description="How layers are scored on tasks."
    )
    association: AssociationSettings = Field(
        AssociationSettings(),
        description="How metrics are associated with task scores over layers.",
    )
    jobs: JobsSettings = Field(
        JobsSettings(), description="How much work a job takes, and what is kept of it."
    )
    studies: dict[Name, Study] = Field(
        min_length=1,
        description="The figures and tables to make, by name; what they need is computed, nothing "
        "else.",
    )

    @classmethod
    def of(cls, given: Any, *, checked: bool = False) -> Config:
        """Check a config and fill in every default.

        Parameters
        ----------
        given : mapping
            As YAML or JSON has it.
        checked : bool
            Whether its sections are known to fit together.

        Raises
        ------
        LayerwiseError
            In one line: which key, what came, what is accepted, and the closest name if one is
            near.
        """
        from layerwise.config.checks import check

        if isinstance(given, Mapping):
            given = listed(plain(given, "The config"))
        config = parse(cls, given)
        config = config._spread()
        if not checked:
            check(config)
        return config

    def _spread(self) -> Config:
        """The config with each corpus of several perturbations as several corpora."""
        parts = {name: dict(entry.spread(name)) for name, entry in self.corpora.items()}
        corpora = {name: entry for part in parts.values() for name, entry in part.items()}
        if corpora.keys() == self.corpora.keys():
            return self
        twice = sorted(parts.keys() & corpora.keys() - {n for n in parts if n in parts[n]})
        if twice or len(corpora) < sum(map(len, parts.values())):
            raise LayerwiseError(
                f"corpora: {', '.join(twice) or 'two corpora'} would have the name of another's "
                "perturbation; rename it."
            )

        def named(study: Study) -> Study:
            if study.corpora is None:
                return study
            names = tuple(n for corpus in study.corpora for n in parts.get(corpus, (corpus,)))
            return study.model_copy(update={"corpora": names})

        studies = {name: named(study) for name, study in self.studies.items()}
        return self.model_copy(update={"corpora": corpora, "studies": studies})

    def labels(self) -> dict[str, dict[str, float]]:
        """What each perturbed corpus is told apart by: ``{corpus: {repetition: 0.5}}``."""
        return {n: c.perturb.labels for n, c in self.corpora.items() if c.perturb is not None}

    def extraction(self, model: str, corpus: str | None = None) -> ExtractSettings:
        """How a model is run: the section, and what its entry and the corpus' say otherwise."""
        found = self.models[model].over(self.extract)
        return found if corpus is None else self.corpora[corpus].over(found)

    def scoring_of(self, model: str) -> ScoringSettings:
        """How a model is scored: the section, and what the model's entry says otherwise."""
        return self.models[model].over(self.scoring)


def read_config(files: Iterable[Path]) -> Config:
    """Read a config from one YAML file or several, of which later ones replace keys.

    Raises
    ------
    LayerwiseError
        As `Config.of`, and for a file that is missing or no strict YAML.
    """
    return Config.of(read_yaml(files))
