"""Results of a run, and the layers of a model, in a line of Python each.

>>> import layerwise as lw
>>> run = lw.open("results")  # doctest: +SKIP
>>> run.metrics("prompt_entropy", model="smollm2-135m")  # doctest: +SKIP
>>> table = lw.analyse("HuggingFaceTB/SmolLM2-135M", texts)  # doctest: +SKIP
>>> lw.plot(table, "prompt_entropy")  # doctest: +SKIP
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerwise.errors import LayerwiseError, closest, listed
from layerwise.names import decode

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from layerwise.association.order import Order
    from layerwise.choosing import Choice
    from layerwise.config import Config
    from layerwise.config.studies import Study
    from layerwise.models.load import LoadedModel
    from layerwise.tasks.labelled import Labelled

# Where each table is, its wildcards in the order of the path.
FILES = {
    "metrics": ("metrics/*/*/*.parquet", ("model", "revision", "corpus")),
    "prompts": ("metrics/*/*/*.prompts.parquet", ("model", "revision", "corpus")),
    "positions": ("metrics/*/*/*.positions.parquet", ("model", "revision", "corpus")),
    "scores": ("scores/*/*.parquet", ("model", "revision")),
    "probes": ("probes/*/*.parquet", ("model", "revision")),
    "texts": ("corpora/*.parquet", ("corpus",)),
    "associations": ("associations/*.parquet", ("study",)),
    "selections": ("selections/*.parquet", ("study",)),
    "similarities": ("similarities/*.parquet", ("study",)),
    "activations": ("activations/*/*/*.h5", ("model", "revision", "corpus")),
}
PARTS = (".prompts", ".positions", ".views")

# What is taken of a dimension where the caller names nothing and the table has it.
USUAL: dict[str, object] = {
    "sublayer": "block", "protocol": "paper", "tokens": "all", "alpha": 1.0,
    "normalization": "raw", "pooling": "mean", "readout": "final_norm", "view": 0,
}  # fmt: skip
PROBE = "linear_probe"
# Keys of a study that take several names; one is enough here.
LISTS = frozenset(
    {"models", "corpora", "tasks", "task_types", "tokens", "metrics", "sublayers"}
)


def open(folder: str | Path = "results") -> Run:  # noqa: A001
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
    return Run(Path(folder))


class Run:
    """Results of a run, read from its folder when they are asked for.

    Attributes
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not any(self._paths(name) for name in FILES):
            raise LayerwiseError(
                f"{folder} holds no results; give the results folder of a run "
                "(`results:` in its config).",
                code="no_results",
            )

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: models {', '.join(self.models) or 'none'})"

    @property
    def models(self) -> list[str]:
        """Models with metrics, scores or activations."""
        return self._names("model")

    @property
    def corpora(self) -> list[str]:
        """Corpora with metrics or activations."""
        return self._names("corpus")

    @property
    def studies(self) -> list[str]:
        """Studies of the run's config, for `plot`."""
        return list(self._config.studies) if self._config else []

    def metrics(
        self, metric: str | Sequence[str] | None = None, model: str | None = None, **dimensions: Any
    ) -> pd.DataFrame:
        """Metrics by layer: the table ``metrics`` of `table`.

        Parameters
        ----------
        metric : str or sequence of str, optional
            All by default.
        model : str, optional
            All by default.
        **dimensions
            Values of other columns, such as ``corpus="wikipedia"`` or ``alpha=2``. None takes all
            values of a dimension of which usually one is taken (`USUAL`).
        """
        return self.table("metrics", metric=metric, model=model, **dimensions)

    def scores(
        self, task: str | Sequence[str] | None = None, model: str | None = None, **dimensions: Any
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
            metrics, prompts, positions, scores, probes, associations, selections or similarities.
        **dimensions
            As for `metrics`.

        Raises
        ------
        LayerwiseError
            If there is no such table, column or value; the message names those that exist.
        """
        from layerwise import tables

        _one_of("table", name, FILES)
        paths = self._paths(name, **{k: v for k, v in dimensions.items() if v is not None})
        return select(tables.read(paths, name), **dimensions)

    def activations(
        self, model: str | None = None, corpus: str | None = None, revision: str | None = None,
        *, sublayer: str | None = None, **dimensions: Any,
    ) -> xr.Dataset:  # fmt: skip
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

        wanted = {"model": model, "corpus": corpus, "revision": revision}
        paths = self._paths("activations", **{k: v for k, v in wanted.items() if v is not None})
        if len(paths) > 1:
            raise LayerwiseError(
                f"{len(paths)} files of activations fit: "
                f"{listed('/'.join(path.parts[-3:]) for path in paths)}; name the model, the "
                "corpus and the revision.",
                code="ambiguous",
            )
        with Activations(paths[0], sublayer=sublayer or "block"):
            pass  # refuses a damaged file and an unknown sublayer
        group = f"{GROUP}/{sublayer}" if sublayer else None
        data = xr.open_dataset(paths[0], engine="h5netcdf", group=group)
        for name in dimensions:
            _one_of("dimension", name, data.coords)
        for name, usual in USUAL.items():
            if name not in dimensions and name in data.coords and usual in data[name].values:
                dimensions[name] = usual
        chosen = {k: v for k, v in dimensions.items() if v is not None}
        for name, value in chosen.items():
            for each in _several(value):
                _one_of(name, each, data[name].values.tolist())
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
        from layerwise import tables
        from layerwise.association.sources import with_text_sources
        from layerwise.config.kinds import needs
        from layerwise.figures.render import draw

        study, own = self._study(name, choices)
        read = {}
        for table in needs(study):
            wanted = {"study": own} if FILES[table][1] == ("study",) else {}
            read[table] = tables.read(self._paths(table, **wanted), table)
        config = self._config
        if "scores" in read and config:
            read["scores"] = with_text_sources(read["scores"], config.association.text_sources)
        directions = config.association.directions if config else None
        return draw(study, read, self._order, directions=directions, ax=ax).figure

    def _study(self, name: str, choices: Mapping[str, Any]) -> tuple[Study, str]:
        """A study, and the name of the config's study whose tables it reads."""
        from layerwise.config.base import parse
        from layerwise.config.kinds import KINDS
        from layerwise.config.studies import Study

        studies = self._config.studies if self._config else {}
        _one_of("study or kind", name, [*studies, *KINDS])
        given = {k: [v] if k in LISTS and isinstance(v, str) else v for k, v in choices.items()}
        if name in studies:
            return parse(Study, {**studies[name].plain(), **given}), name
        own = next((n for n, study in studies.items() if study.kind == name), name)
        return parse(Study, {"kind": name, **given}), own

    @cached_property
    def _config(self) -> Config | None:
        """The config that the run was started with, if its snapshot is there."""
        from layerwise.config import read_config

        snapshot = self.folder / "config.json"
        return read_config([snapshot]) if snapshot.is_file() else None

    @property
    def _order(self) -> Order:
        from layerwise.association.order import Order

        models = self._config.models if self._config else {}
        return Order(tuple(models), {m: tuple(entry.revisions) for m, entry in models.items()})

    def _names(self, wildcard: str) -> list[str]:
        found = {
            names[wildcard]
            for table, (_, wildcards) in FILES.items() if wildcard in wildcards and table != "texts"
            for names in self._files(table).values()
        }  # fmt: skip
        order = getattr(self._config, {"model": "models", "corpus": "corpora"}[wildcard], {})
        return [n for n in order if n in found] + sorted(found - set(order))

    def _files(self, table: str) -> dict[Path, dict[str, str]]:
        """Files of a table, with the names in their paths."""
        pattern, wildcards = FILES[table]
        found = {}
        for path in sorted(self.folder.glob(pattern)):
            parts = [*path.relative_to(self.folder).parts[1:-1], path.stem]
            if not path.stem.endswith(PARTS):
                found[path] = dict(zip(wildcards, map(decode, parts), strict=True))
            elif table in PART_TABLES and path.stem.endswith(f".{table}"):
                parts[-1] = path.stem.removesuffix(f".{table}")
                found[path] = dict(zip(wildcards, map(decode, parts), strict=True))
        return found

    def _paths(self, table: str, **wanted: Any) -> list[Path]:
        """Files of a table whose paths have the wanted names."""
        files = self._files(table)
        if not files and not wanted:
            return []
        for name, value in wanted.items():
            if name in FILES[table][1]:
                known = dict.fromkeys(names[name] for names in files.values())
                for each in _several(value):
                    _one_of(name, each, known)
                files = {p: n for p, n in files.items() if n[name] in _several(value)}
        return list(files)
