"""Results of a run, and the layers of a model, in a line of Python each.

>>> import layerwise as lw
>>> run = lw.open("results")  # doctest: +SKIP
>>> run.metrics("prompt_entropy", model="smollm2-135m")  # doctest: +SKIP
>>> table = lw.analyse("HuggingFaceTB/SmolLM2-135M", texts)  # doctest: +SKIP
>>> lw.plot(table, "prompt_entropy")  # doctest: +SKIP
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise.analysis import loaded_model, measure, normalizes, prompts_of
from layerwise.association.order import in_order
from layerwise.config.studies import several
from layerwise.errors import LayerwiseError, check_name, listed
from layerwise.names import PATHS, RESERVED, decode, encode

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from layerwise.choosing import Choice
    from layerwise.config import Config
    from layerwise.config.studies import Study
    from layerwise.models.load import LoadedModel
    from layerwise.tasks.labelled import Labelled

# Default values of dimensions, where the table has them.
USUAL: dict[str, object] = {
    "sublayer": "block",
    "protocol": "paper",
    "tokens": "all",
    "alpha": 1.0,
    "normalization": "raw",
    "pooling": "mean",
    "readout": "final_norm",
    "view": 0,
}
PROBE = "linear_probe"
# Keys of a study that take several names; one is enough here.
LISTS = frozenset({"models", "corpora", "tasks", "task_types", "tokens", "metrics", "sublayers"})


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
        if not any(map(self._files, PATHS)):
            raise LayerwiseError(
                f"{folder} holds no results; give the results folder of a run "
                "(`results:` in its config).",
                code="missing_file",
            )

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: models {', '.join(self.models) or 'none'})"

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
        return list(self._config.studies) if self._config else []

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
            `USUAL` have a default; None takes all of their values.
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
        **dimensions
            As for `metrics`.

        Raises
        ------
        LayerwiseError
            If there is no such table, column or value; the message names those that exist.
        """
        check_name("table", name, PATHS)
        return select(self._read(name, **dimensions), **dimensions)

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
        data = xr.open_dataset(paths[0], engine="h5netcdf", group=group)
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
        from layerwise.association.sources import with_text_sources
        from layerwise.config.kinds import needs
        from layerwise.figures.render import draw
        from layerwise.io import tables

        study, own = self._study(name, choices)
        config = self._config
        read = {}
        for table in needs(study):
            if study.published:
                path = self.folder / "published" / f"{encode(study.published)}.{table}.parquet"
                read[table] = tables.read(path, table)
            else:
                read[table] = self._read(table, study=own)
        if config and "scores" in read and not study.published:
            scores = read["scores"][read["scores"]["task"].isin(list(config.tasks))]
            read["scores"] = with_text_sources(scores, config.association.text_sources)
        return draw(study, read, config=config, ax=ax).figure

    def _study(self, name: str, choices: Mapping[str, Any]) -> tuple[Study, str]:
        """A study, and the name of the config's study whose tables it reads."""
        from layerwise.config.kinds import KINDS
        from layerwise.config.studies import Study
        from layerwise.section import parse

        studies = self._config.studies if self._config else {}
        check_name("study or kind", name, [*studies, *KINDS])
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
        return read_config(snapshot) if snapshot.is_file() else None

    def _names(self, wildcard: str, section: str) -> list[str]:
        """Names in the paths of files, in the order of the config."""
        files = [
            names
            for table in ("metrics", "scores", "activations")
            for names in self._files(table).values()
        ]
        found = (names[wildcard] for names in files if wildcard in names)
        return in_order(dict.fromkeys(found), getattr(self._config, section, None))

    def _files(self, table: str) -> dict[Path, dict[str, str]]:
        """Files of a table, with the names in their paths."""
        pattern = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(PATHS[table])))
        found = {}
        for path in sorted(self.folder.glob(re.sub(r"{\w+}", "*", PATHS[table]))):
            match = pattern.fullmatch(path.relative_to(self.folder).as_posix())
            if match and not match.groupdict().get("corpus", "").endswith(RESERVED):
                found[path] = {k: decode(v) for k, v in match.groupdict().items()}
        return found

    def _read(self, table: str, **wanted: Any) -> pd.DataFrame:
        """A table from all files that fit."""
        from layerwise.io import tables

        paths = self._paths(table, **wanted)
        if not paths:
            raise LayerwiseError(
                f"{self.folder} has no table of {table}; it has "
                f"{', '.join(filter(self._files, PATHS))}.",
                code="missing_file",
            )
        return tables.read(paths, table)

    def _paths(self, table: str, **wanted: Any) -> list[Path]:
        """Files of a table whose paths have the wanted names."""
        files = self._files(table)
        for name in re.findall(r"{(\w+)}", PATHS[table] if files else ""):
            for each in several(wanted.get(name)):
                check_name(name, each, dict.fromkeys(names[name] for names in files.values()))
            if wanted.get(name) is not None:
                files = {p: n for p, n in files.items() if n[name] in several(wanted[name])}
        return list(files)


def analyse(
    model: Any,
    texts: Any,
    tokenizer: Any = None,
    metrics: str | Sequence[str] | None = None,
    labels: Sequence[Any] | None = None,
    *,
    views: Sequence[Sequence[Any]] = (),
    tokens: str | Sequence[str] = "all",
    protocols: str | Sequence[str] = "paper",
    alphas: float | Sequence[float] = 1.0,
    normalizations: str | Sequence[str] = "raw",
    column: str = "text",
    revision: str = "main",
    device: str = "auto",
    threads: int = 1,
) -> pd.DataFrame:
    """Compute metrics of every layer of a model on texts or images.

    The code is that of the workflow, and so are the values.

    Parameters
    ----------
    model
        A model of transformers or sentence-transformers in memory, which is not changed, or a
        folder, a hub name or package:NAME/path.
    texts
        A list of texts or of PIL images, a `datasets.Dataset`, or a file (.txt, .csv, .jsonl,
        .parquet).
    tokenizer : optional
        Tokenizer or image processor of a model in memory; by default that of its source.
    metrics : str or sequence of str, optional
        By default all metrics that can be computed from `texts` and `views`.
    labels : sequence, optional
        A label of each text. Adds the score of a linear probe, as rows of the metric
        ``linear_probe``: accuracy of classes, R² of numbers, on held-out texts.
    views : sequence of V sequences, optional
        Augmented copies of the texts, for metrics that compare views (InfoNCE, DiME, LiDAR).
    tokens, protocols, alphas, normalizations : optional
        One variant or several; each has its own rows.
    column : str
        Column of a data set or file that holds the texts, or images.
    revision : str
        Branch, tag or commit of a model on the hub.
    device : str
        auto, cpu, cuda or cuda:N, for a model that is loaded here.
    threads : int
        Number of layers whose metrics are computed in parallel.

    Returns
    -------
    DataFrame
        Columns of the workflow's tables of metrics (model, layer, depth, metric, value, stderr, n,
        and the dimensions), and ``low`` and ``high``, the ends of 95% intervals.

    Examples
    --------
    >>> import layerwise as lw
    >>> table = lw.analyse(model, texts, tokenizer, metrics="prompt_entropy")
    >>> table[["layer", "value", "n"]].round(1)
       layer  value   n
    0      0    2.5  24
    1      1    2.1  24
    2      2    2.1  24
    3      3    2.0  24
    >>> probed = lw.analyse(model, texts, tokenizer, "rankme", labels)
    >>> sorted(set(probed["metric"]))
    ['linear_probe', 'rankme']

    Raises
    ------
    LayerwiseError
        If a name is unknown, the model cannot be read, or the texts do not suit it.
    """
    prompts = prompts_of(texts, column)
    with loaded_model(model, tokenizer, revision, device) as loaded:
        table, _ = measure(
            loaded,
            [prompts, *(prompts_of(view, column) for view in views)],
            threads,
            metrics=metrics,
            tokens=tokens,
            protocols=protocols,
            alphas=alphas,
            normalizations=normalizations,
        )
        if labels is not None:
            data, normalize = labelled(prompts, labels), normalizes(model, revision)
            probes = [probe_scores(loaded, data, name, normalize) for name in several(tokens)]
            table = pd.concat([table, *probes], ignore_index=True)
    return table


def probe_scores(
    loaded: LoadedModel, data: Labelled, tokens: str, normalize: bool
) -> pd.DataFrame:
    """Scores of a linear probe by layer, in the columns of the metrics, with low and high."""
    from layerwise.choosing import layer_scores

    scores = layer_scores(loaded, data, tokens, normalize=normalize)
    rows = [(one.main_score, one.n_runs, one.score_low, one.score_high) for one in scores]
    return pd.DataFrame(rows, columns=["value", "n", "low", "high"]).assign(
        layer=range(len(rows)),
        depth=np.linspace(0, 1, len(rows)),
        model=loaded.name,
        revision=loaded.revision,
        corpus="prompts",
        sublayer="block",
        metric=PROBE,
        protocol="paper",
        tokens=tokens,
        normalization="raw",
        n_left_out=0,
    )


def labelled(prompts: Sequence[Any], labels: Sequence[Any]) -> Labelled:
    """Prompts with a label each, ready for probes; equal prompts stay together."""
    from layerwise.choosing import kind_of_labels
    from layerwise.tasks import probes
    from layerwise.tasks.labelled import Labelled

    labels = list(labels)
    if len(labels) != len(prompts):
        raise LayerwiseError(
            f"There are {len(labels)} labels for {len(prompts)} texts; give each text one.",
            code="wrong_shape",
        )
    kind = kind_of_labels(pd.Series(labels))
    values = probes.numbers(labels) if kind == "regression" else probes.classes(labels)
    groups = [getattr(prompt, "sha256", prompt) for prompt in prompts]
    return Labelled(kind, [list(prompts)], values, groups)


def choose(
    model: Any,
    texts: Any,
    labels: Sequence[Any] | None = None,
    tokenizer: Any = None,
    *,
    tokens: str | None = None,
    column: str = "text",
    revision: str = "main",
    device: str = "auto",
    threads: int = 1,
) -> Choice:
    """Recommend a layer: from labels of the texts or images, or from metrics if there are none.

    Parameters
    ----------
    tokens : str, optional
        Token selection; by default ``drop_first`` for causal models, else ``all``.
    model, texts, labels, tokenizer, column, revision, device, threads
        As for `analyse`.

    Returns
    -------
    Choice
        Its `layer`, a `sentence` that says why, and a `table` of every layer.

    Examples
    --------
    >>> import layerwise as lw
    >>> choice = lw.choose(model, texts, labels, tokenizer)
    >>> list(choice.table.columns[:4])
    ['layer', 'score', 'low', 'high']
    """
    from layerwise import choosing

    prompts = prompts_of(texts, column)
    data = (
        choosing.sample_texts(prompts, len(prompts))
        if labels is None
        else labelled(prompts, labels)
    )
    with loaded_model(model, tokenizer, revision, device) as loaded:
        return choosing.choose(loaded, data, tokens=tokens, threads=threads)


def plot(table: pd.DataFrame, metric: str, ax: Axes | None = None) -> Figure:
    """Draw a metric by depth, from a table of `analyse` or `Run.metrics`.

    Parameters
    ----------
    table : DataFrame
        Models differ by colour, token selections by panel.
    metric : str
    ax : matplotlib Axes, optional
        Axes to draw on.

    Examples
    --------
    >>> import layerwise as lw
    >>> figure = lw.plot(lw.analyse(model, texts, tokenizer), "prompt_entropy")
    """
    from layerwise.config.studies import Study
    from layerwise.figures.render import draw

    check_name("column", "metric", table.columns)
    check_name("metric", metric, table["metric"].unique())
    study = Study(kind="metrics_by_depth", metrics=(metric,))
    rows = table[table["metric"] == metric]
    return draw(study, {"metrics": rows}, ax=ax).figure


def select(table: pd.DataFrame, **dimensions: Any) -> pd.DataFrame:
    """Rows of a table by the values of columns, and of the usual variant in the others.

    A metric or task that does not have a dimension's usual value keeps all of its rows.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame(
    ...     {"metric": "rankme", "tokens": ["all", "drop_first"], "value": [3, 2]}
    ... )
    >>> select(table)["value"].tolist(), select(table, tokens=None)["value"].tolist()
    ([3], [3, 2])

    Raises
    ------
    LayerwiseError
        If there is no such column or value; the message names those that exist.
    """
    for name, value in dimensions.items():
        check_name("column", name, table.columns)
        if value is not None:
            known = table[name].dropna().unique().tolist()
            for each in several(value):
                check_name(name, each, known)
            table = table[table[name].isin(several(value))]
    each = next((c for c in ("metric", "task") if c in table), None)
    for name, usual in USUAL.items():
        if name in table and name not in dimensions:
            fits = table[name] == usual
            there = fits if each is None else fits.groupby(table[each]).transform("any")
            table = table[fits | table[name].isna() | ~there]
    return table.reset_index(drop=True)
