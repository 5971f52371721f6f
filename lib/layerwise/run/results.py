"""The one reader of a run's tables: of the workflow's scripts, of Python and of the shell.

Tables are read from the results folder when they are asked for.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerwise.config.studies import all_kinds, select, several
from layerwise.errors import LayerwiseError, check_name, listed
from layerwise.io import tables
from layerwise.names import PATHS, RESERVED, Order, decode, in_order, order_key, step_of
from layerwise.run.plan import OF_STUDY, TABLE_KEYS
from layerwise.vocabulary import USUAL

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from layerwise.config import Config
    from layerwise.config.studies import Study
    from layerwise.figures.render import Drawn
    from layerwise.run.plan import Plan, PlannedStudy

log = logging.getLogger(__name__)

# Keys of a study that take several names; one is enough here.
LISTS = frozenset({"models", "corpora", "tasks", "task_types", "tokens", "metrics", "sublayers"})
# Keys of a study that decide what its own tables hold.
DECISIVE = ("published", "corpora", "tasks", "over")
ADD_STUDY = (
    "{kind} draws a table that the workflow makes for a study; add a study of this kind to the "
    "config and run it."
)


def open(folder: str | Path = "results") -> Results:  # noqa: A001
    """Open the results folder of a run.

    Examples
    --------
    >>> import layerwise as lw
    >>> run = lw.open("results")
    >>> run.models
    ['bert', 'llama']
    >>> curve = run.metrics("prompt_entropy", model="llama")
    >>> list(curve["layer"])
    [0, 1, 2, 3]

    Raises
    ------
    LayerwiseError
        If the folder does not exist or holds no results.
    """
    results = Results(Path(folder))
    if not any(map(results._files, PATHS)):
        raise LayerwiseError(
            f"{folder} holds no results; give the results folder of a run "
            "(`results:` in its config).",
            code="missing_file",
        )
    return results


class Results:
    """Results of a run, read from its folder when they are asked for.

    Attributes
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._compared: set[Path] = set()
        self._tables: dict[tuple[str, str], Path] = {}
        self._copies: dict[str, str] = {}

    @classmethod
    def of(cls, plan: Plan) -> Results:
        """The results of a plan, in the folder that its config names."""
        results = cls(Path(plan.config.results))
        results.plan, results.keys = plan, {}
        return results

    def __repr__(self) -> str:
        return f"Results({str(self.folder)!r}: models {', '.join(self.models) or 'none'})"

    def _repr_html_(self) -> str:
        """The folder, and the names to ask for, for notebooks."""
        names = {"models": self.models, "corpora": self.corpora, "studies": self.studies}
        rows = {what: ", ".join(each) or "none" for what, each in names.items()}
        return pd.DataFrame({str(self.folder): rows}).to_html()

    @cached_property
    def plan(self) -> Plan | None:
        """The plan of the config that the run was started with, if its snapshot is there."""
        from layerwise.config import read_config
        from layerwise.run.plan import Plan

        snapshot = self.folder / "config.json"
        if not snapshot.is_file():
            return None
        config = read_config(snapshot)
        return Plan(config.model_copy(update={"results": str(self.folder)}))

    @cached_property
    def keys(self) -> dict[Path, str]:
        """The keys that the last run asked for, by table."""
        file = self.folder / TABLE_KEYS
        keys = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return {self.folder / name: key for name, key in keys.items()}

    def outdated(self, paths: Iterable[Path]) -> str:
        """A sentence about tables of another config than the run's; empty if there are none."""
        keys = {path: self.keys[path] for path in paths if path in self.keys}
        others = [str(path) for path, key in keys.items() if tables.facts(path)["key"] != key]
        if not others:
            return ""
        return (
            f"Made with another config than {self.folder}/config.json: {listed(others)}. The last "
            "run did not finish; start it again."
        )

    @property
    def models(self) -> list[str]:
        """Models with metrics, scores or activations."""
        return self._names("model", "models")

    @property
    def corpora(self) -> list[str]:
        """Corpora with metrics or activations."""
        return self._names("corpus", "corpora")

    @property
    def studies(self) -> list[str]:
        """Studies of the run's config, for `plot`."""
        return list(self.plan.studies) if self.plan else []

    def metrics(
        self,
        metric: str | Sequence[str] | None = None,
        model: str | None = None,
        **dimensions: Any,
    ) -> pd.DataFrame:
        """Metrics by layer: the table ``metrics`` of `table`.

        Parameters
        ----------
        metric : str or sequence of str, optional
            All by default.
        model : str, optional
            All by default.
        **dimensions
            Values of other columns, such as ``corpus="wikipedia"`` or ``alpha=2``. Dimensions in
            `layerwise.vocabulary.USUAL` have a default; None takes all of their values.
        """
        return self.table("metrics", metric=metric, model=model, **dimensions)

    def scores(
        self,
        task: str | Sequence[str] | None = None,
        model: str | None = None,
        **dimensions: Any,
    ) -> pd.DataFrame:
        """Scores of tasks by layer, with their intervals: the table ``scores`` of `table`.

        Parameters
        ----------
        task : str or sequence of str, optional
            All by default.
        model, **dimensions
            As for `metrics`.
        """
        return self.table("scores", task=task, model=model, **dimensions)

    def table(self, name: str, **dimensions: Any) -> pd.DataFrame:
        """One of the run's tables, its rows selected by column.

        Parameters
        ----------
        name : str
            metrics, prompts, positions, scores, associations, selections or similarities.
            Checkpoints are in training order, and ``step`` is the number in their names.
        **dimensions
            As for `metrics`.

        Raises
        ------
        LayerwiseError
            If there is no such table, column or value; the message names those that exist.
        """
        check_name("table", name, PATHS)
        table = self._read(name, **dimensions)
        if "revision" in table:
            table = table.assign(step=table["revision"].map(step_of).astype("Int64"))
        return select(table, **dimensions)

    def activations(
        self,
        model: str | None = None,
        corpus: str | None = None,
        revision: str | None = None,
        *,
        sublayer: str | None = None,
        **dimensions: Any,
    ) -> xr.Dataset:
        """An activations file as an xarray data set, read from disk when values are needed.

        Parameters
        ----------
        model, corpus, revision : str, optional
            Not needed where there is only one.
        sublayer : str, optional
            A part of each block, such as ``mlp``; by default the layers themselves.
        **dimensions
            As for `metrics`. By default the array ``pooled`` is of layer, prompt and hidden.

        Raises
        ------
        LayerwiseError
            If there is no such file, or several fit.
        """
        import xarray as xr

        from layerwise.activations.store import GROUP, Activations
        from layerwise.io.hdf5 import UNLOCKED

        paths = self._paths("activations", model=model, corpus=corpus, revision=revision)
        if len(paths) != 1:
            raise LayerwiseError(
                f"{len(paths)} files of activations fit: "
                f"{listed('/'.join(path.parts[-3:]) for path in paths)}; name the model, the "
                "corpus and the revision.",
                code="ambiguous",
            )
        with Activations(paths[0], sublayer=sublayer or "block"):
            pass  # refuses a damaged file and an unknown sublayer
        group = f"{GROUP}/{sublayer}" if sublayer else None
        data = xr.open_dataset(paths[0], engine="h5netcdf", group=group, driver_kwds=UNLOCKED)
        usual = {k: v for k, v in USUAL.items() if k in data.coords and v in data[k].values}
        chosen = {k: v for k, v in (usual | dimensions).items() if v is not None}
        for name, value in chosen.items():
            check_name("dimension", name, data.coords)
            for each in several(value):
                check_name(name, each, data[name].values.tolist())
        return data.sel(chosen)

    def plot(self, name: str, ax: Axes | None = None, **choices: Any) -> Figure:
        """Draw a study of the run's config, or a kind of study with its defaults.

        Parameters
        ----------
        name : str
            Name of a study, or a kind such as ``score_by_depth``.
        ax : matplotlib Axes, optional
            Axes to draw on, for a figure of a single panel.
        **choices
            Keys of a study, such as ``models="smollm2-135m"``.

        Raises
        ------
        LayerwiseError
            If there is no such study or kind, or the tables do not have what it shows.
        """
        return self.draw(name, ax, **choices).figure

    def draw(self, name: str, ax: Axes | None = None, **choices: Any) -> Drawn:
        """As `plot`: the figure with its table, title and caption."""
        from layerwise.config.studies import Study
        from layerwise.figures.render import draw
        from layerwise.section import parse

        keys = {k: [v] if k in LISTS and isinstance(v, str) else v for k, v in choices.items()}
        if self.plan:
            planned = self._planned(self.plan, name, keys)
            partial = bool(keys) or name not in self.plan.studies
            read = {t: self.of_study(planned, t, partial=partial) for t in planned.needs}
            order = self.order() if "selections" in read else None
            return draw(planned.study, read, order, config=self.plan.config, ax=ax)
        check_name("kind", name, all_kinds())
        study = parse(Study, {"kind": name, **keys})
        if OF_STUDY & set(study.reads):
            raise LayerwiseError(ADD_STUDY.format(kind=name), code="missing_file")
        return draw(study, {t: self._read(t) for t in study.reads}, ax=ax)

    def of_study(
        self, planned: PlannedStudy, table: str, *, partial: bool = False
    ) -> pd.DataFrame:
        """A table that a study reads, from all of its files, with scores of its tasks only.

        Parameters
        ----------
        planned : PlannedStudy
        table : str
            One of the study's `needs`.
        partial : bool
            True to read the files that are there, if not all are.
        """
        paths = [Path(path) for path in planned.files(table)]
        if partial:
            paths = [path for path in paths if path.is_file()] or paths[:1]
        rows, study = self.read(paths, table), planned.study
        if study.published and table in ("metrics", "scores"):
            corpora = study.corpora and planned.corpora
            for column, names in (("model", study.models), ("corpus", corpora)):
                if names and column in rows:
                    rows = rows[rows[column].isin(names)]
        elif table == "scores":
            rows = rows[rows["task"].isin(planned.tasks)]
        return rows.reset_index(drop=True)

    def read(self, paths: Iterable[str | Path], table: str) -> pd.DataFrame:
        """Some files of one table, scores with the text source of each task."""
        from layerwise.association.curves import with_text_sources

        files = list(map(Path, paths))
        if warning := self.outdated(path for path in files if path not in self._compared):
            log.warning(warning)
        self._compared.update(files)
        for path in files:
            self._check_weights(path)
        rows = tables.read(files, table)
        of_tasks = self.plan.config.association.text_sources if self.plan else {}
        return with_text_sources(rows, of_tasks) if table == "scores" else rows

    def _check_weights(self, path: Path) -> None:
        """Refuse a table of other weights than those of the checkpoint's tables read so far."""
        facts = tables.facts(path)
        self._copies |= json.loads(facts.get("copies", "{}"))
        if "weights_sha256" not in facts:  # of a study, or published
            return
        other = self._tables.setdefault((facts["model"], facts["revision"]), path)
        if other.is_file() and tables.facts(other)["weights_sha256"] != facts["weights_sha256"]:
            raise LayerwiseError(
                f"{path} and {other} are of different weights: {facts['model']} at "
                f"{facts['revision']} has changed in between; delete what the run has of it in "
                "activations, metrics and scores, and run again.",
                code="mismatch",
            )

    def order(self) -> Order:
        """The config's order; models whose weights an earlier one has are copies."""
        assert self.plan is not None
        order, copies = Order.of(self.plan.config), dict(self._copies)
        first: dict[str, str] = {}
        for model in order.models:
            revisions = [r for m, r in self._tables if m == model]
            for last in order.checkpoints(model, revisions)[-1:]:
                weights = tables.facts(self._tables[model, last])["weights_sha256"]
                if (same := first.setdefault(weights, model)) != model:
                    log.warning("%s has the weights of %s; they count as one", model, same)
                    copies[model] = same
        return replace(order, copies=copies)

    def _planned(self, plan: Plan, name: str, choices: Mapping[str, Any]) -> PlannedStudy:
        """A study of the plan, or a kind with its defaults, with some of its keys changed."""
        from layerwise.config.studies import Study
        from layerwise.run.plan import PlannedStudy
        from layerwise.section import parse

        check_name("study or kind", name, [*plan.studies, *all_kinds()])
        base = plan.studies.get(name)
        if base is None and OF_STUDY & set(all_kinds()[name].reads):
            base = next((s for s in plan.studies.values() if s.study.kind == name), None)
            if base is None:
                raise LayerwiseError(ADD_STUDY.format(kind=name), code="missing_file")
        study = parse(Study, {"kind": name, **(base.study.plain() if base else {}), **choices})
        for key, names in (("models", plan.config.models), ("tasks", plan.config.tasks)):
            for each in () if study.published else getattr(study, key) or ():
                check_name(key.rstrip("s"), each, names)
        if base and "models" in choices and "revisions" not in choices:
            study = study.model_copy(update={"revisions": _of_models(study, plan.config)})
        if base and OF_STUDY & set(base.needs):
            changed = [key for key in DECISIVE if getattr(study, key) != getattr(base.study, key)]
            if changed:
                raise LayerwiseError(
                    f"The table of {base.name} was made with other {' and '.join(changed)}; add a "
                    "study with these to the config and run it.",
                    code="missing_file",
                )
        return PlannedStudy(base.name if base else name, study, plan.config)

    def _names(self, wildcard: str, section: str) -> list[str]:
        """Names in the paths of files, in the order of the config."""
        of_tables = map(self._files, ("metrics", "scores", "activations"))
        files = [names for of_table in of_tables for names in of_table.values()]
        named = (names[wildcard] for names in files if wildcard in names)
        order = getattr(self.plan.config, section) if self.plan else ()
        return in_order(dict.fromkeys(named), order)

    def _files(self, table: str) -> dict[Path, dict[str, str]]:
        """Files of a table, with the names in their paths, checkpoints in training order."""
        pattern = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(PATHS[table])))
        files = {}
        for path in sorted(self.folder.glob(re.sub(r"{\w+}", "*", PATHS[table]))):
            match = pattern.fullmatch(path.relative_to(self.folder).as_posix())
            if match and not match.groupdict().get("corpus", "").endswith(RESERVED):
                files[path] = {k: decode(v) for k, v in match.groupdict().items()}
        return dict(sorted(files.items(), key=_training_order))

    def _read(self, table: str, **wanted: Any) -> pd.DataFrame:
        """A table from all files that fit."""
        paths = self._paths(table, **wanted)
        if not paths:
            raise LayerwiseError(
                f"{self.folder} has no table of {table}; it has "
                f"{', '.join(filter(self._files, PATHS))}.",
                code="missing_file",
            )
        return self.read(paths, table)

    def _paths(self, table: str, **wanted: Any) -> list[Path]:
        """Files of a table whose paths have the wanted names."""
        files = self._files(table)
        for name in re.findall(r"{(\w+)}", PATHS[table] if files else ""):
            for each in several(wanted.get(name)):
                check_name(name, each, dict.fromkeys(names[name] for names in files.values()))
            if wanted.get(name) is not None:
                files = {p: n for p, n in files.items() if n[name] in several(wanted[name])}
        return list(files)


def _training_order(file: tuple[Path, dict[str, str]]) -> tuple[Any, ...]:
    path, names = file
    return names.get("model", ""), order_key(names.get("revision", "")), path


def _of_models(study: Study, config: Config) -> Any:
    """The checkpoints that a study names, as far as its models have them; None if none is left."""
    if not isinstance(study.revisions, tuple):
        return study.revisions
    there = {r for m in study.models or () for r in config.models[m].revisions}
    return tuple(r for r in study.revisions if r in there) or None
