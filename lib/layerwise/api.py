"""Results of a run, and the layers of a model, in a line of Python each.

>>> import layerwise as lw
>>> run = lw.open("results")  # doctest: +SKIP
>>> run.metrics("prompt_entropy", model="smollm2-135m")  # doctest: +SKIP
>>> table = lw.analyse("HuggingFaceTB/SmolLM2-135M", texts)  # doctest: +SKIP
>>> lw.plot(table, "prompt_entropy")  # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise.analysis import labels_of, measure, prompts_of, score_labels
from layerwise.config.settings import TextPart
from layerwise.config.studies import several
from layerwise.errors import check_name
from layerwise.run.results import Results, open  # noqa: A004
from layerwise.section import parse
from layerwise.vocabulary import FINAL_NORM

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from layerwise.models.load import LoadedModel
    from layerwise.tasks.labelled import Labels

__all__ = ["Results", "analyse", "embed", "extract", "open", "plot"]

PROBE = "linear_probe"


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
    column: str | None = None,
    max_length: int | None = None,
    revision: str = "main",
    device: str = "auto",
    threads: int = 1,
) -> pd.DataFrame:
    """Compute metrics of every layer of a model on texts, images or recordings.

    The code is that of the workflow, and so are the values.

    Parameters
    ----------
    model
        A model of transformers or sentence-transformers in memory, which is not changed, or a
        folder, a hub name or package:NAME/path. Or states that another program computed: an
        array (layers, texts, D), an array (layers, T, D) for each text, or a file of states.
    texts
        A list of texts, of PIL images or of recordings (``{"array": …, "sampling_rate": …}`` or
        a Path), a `datasets.Dataset`, a file of texts (.txt, .csv, .jsonl, .parquet), or a folder
        of images or recordings.
    tokenizer : optional
        Tokenizer, image processor or feature extractor of a model in memory; by default that of
        its source.
    metrics : str or sequence of str, optional
        By default all metrics that can be computed from `texts` and `views`.
    labels : sequence, optional
        A label of each text. Adds the score of a linear probe, as rows of the metric
        ``linear_probe``: accuracy of classes, R² of numbers, on held-out texts.
    views : sequence of V sequences, optional
        Augmented copies of the texts, for metrics that compare views (InfoNCE, DiME, LiDAR).
    tokens, protocols, alphas, normalizations : optional
        One variant or several; each has its own rows.
    column : str, optional
        Column of a data set or file that holds the texts, images or recordings; by default
        ``text``.
    max_length : int, optional
        Cut texts after this many tokens, recordings after this many frames; by default at the
        model's limit, as in a workflow.
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
    from layerwise.models.opening import open_model
    from layerwise.models.states import States, is_array

    prompts = prompts_of(texts, column)
    what = States(model, prompts) if is_array(model) else model
    with open_model(
        what, tokenizer, max_length=max_length, revision=revision, device=device
    ) as loaded:
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
            data = labels_of(prompts, labels)
            probes = [probe_scores(loaded, data, name, threads) for name in several(tokens)]
            table = pd.concat([table, *probes], ignore_index=True)
    return table


def probe_scores(loaded: LoadedModel, data: Labels, tokens: str, threads: int) -> pd.DataFrame:
    """Scores of a linear probe by layer, in the columns of the metrics, with low and high."""
    scores = score_labels(loaded, data, tokens, threads)
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


def plot(table: pd.DataFrame, metric: str | Sequence[str], ax: Axes | None = None) -> Figure:
    """Draw a metric, or several, by depth, from a table of `analyse` or `Results.metrics`.

    Parameters
    ----------
    table : DataFrame
        Models differ by colour, token selections by panel.
    metric : str or sequence of str
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
    for name in several(metric):
        check_name("metric", name, table["metric"].unique())
    study = Study(kind="metrics_by_depth", metrics=several(metric))
    rows = table[table["metric"].isin(several(metric))]
    return draw(study, {"metrics": rows}, ax=ax).figure


SCHEMA, VERSION = "layerwise.embeddings", 1
NAME = "embeddings"
SCALES = {
    "layer": "0 (embedding output) to L (last block)",
    "text": "0 to N - 1, as given",
    "hidden": "0 to D - 1: coordinates of a vector",
}
BLOCK_BYTES = 256 * 2**20
"""Vectors that are in memory before they are written."""


def embed(
    model: Any,
    texts: Any,
    tokenizer: Any = None,
    *,
    tokens: str = "all",
    pooling: str | None = None,
    readout: str = FINAL_NORM,
    layers: int | Sequence[int] | None = None,
    part: Mapping[str, Any] | None = None,
    batch_tokens: int | None = None,
    out: str | Path | None = None,
    column: str | None = None,
    revision: str = "main",
    device: str = "auto",
) -> xr.DataArray:
    """Embed texts, images or recordings with all layers of a model, in one pass.

    Parameters
    ----------
    model, texts, tokenizer, column, revision, device
        As for `layerwise.analyse`.
    tokens : str
        Token selection: all, drop_first or drop_sinks; of images also patches or class.
    pooling : str
        mean, weighted_mean, max, last_token or cls; by default that of the model's own embeddings,
        and mean for models that are not of sentence-transformers.
    readout : str
        final_norm (of models that have one) or residual.
    layers : int or sequence of int, optional
        Layers to keep, from 0 (the embedding output) to the number of blocks, or from the
        end (-1 is the output); by default all.
    part : mapping, optional
        Part of each text whose tokens count, as ``scoring.part`` of a config: ``after`` and
        ``before`` (markers), ``last`` (so many tokens).
    batch_tokens : int, optional
        Tokens in a batch, pads included; by default what suits the device.
    out : path, optional
        HDF5 file to write. Memory then holds some 256 MB of vectors, whatever the number of texts.

    Returns
    -------
    xarray.DataArray, shape (layers, texts, D), float32
        Dimensions layer, text and hidden; ``depth`` goes from 0 to 1 along the layers. With `out`,
        values are read from the file when they are needed.

    Examples
    --------
    >>> import layerwise as lw
    >>> vectors = lw.embed(model, texts, tokenizer, layers=[1, 3])
    >>> vectors.sel(layer=3).shape, vectors.depth.values.round(2).tolist()
    ((24, 32), [0.33, 1.0])
    >>> stored = lw.embed(model, texts, tokenizer, layers=[1, 3], out="vectors.h5")
    >>> bool((stored == vectors).all())
    True

    Raises
    ------
    LayerwiseError
        If a name is unknown, the model cannot be read, or the texts do not suit it.
    """
    import xarray as xr

    from layerwise.activations.embedding import embed_into, representations_of
    from layerwise.io import hdf5
    from layerwise.io.files import provenance
    from layerwise.models.opening import open_model
    from layerwise.progress import Progress

    prompts = prompts_of(texts, column)
    chosen = None if part is None else parse(TextPart, dict(part), "part")
    with open_model(model, tokenizer, revision=revision, device=device) as loaded:
        pooling = pooling or loaded.embedder.pooling
        ways = representations_of(loaded, [tokens], [pooling], [readout])
        n_layers, hidden = loaded.anatomy.n_layers, loaded.width
        asked = range(n_layers) if layers is None else several(layers)
        for layer in asked:
            check_name("layer", layer, range(-n_layers, n_layers))
        selected = [layer % n_layers for layer in asked]
        of_text = n_layers * hidden * np.dtype(np.float32).itemsize
        size = int(np.clip(BLOCK_BYTES // of_text, 1, len(prompts)))

        def fill(target: Any) -> None:
            """Write the vectors of all texts, a block of texts at a time."""
            with Progress(len(prompts), f"{loaded.name} {loaded.revision}", "text") as bar:
                for start in range(0, len(prompts), size):
                    some = prompts[start : start + size]
                    block = np.empty((1, n_layers, len(some), hidden), np.float32)
                    options: Any = {"part": chosen, "budget": batch_tokens}
                    for n in embed_into(loaded, some, block, ways, **options):
                        bar.update(n)
                    target[:, start : start + len(some)] = block[0, selected]

        depth = np.array(selected) / max(1, n_layers - 1)
        about = {
            "model": loaded.name,
            "revision": loaded.revision,
            "tokens": tokens,
            "pooling": pooling,
            "readout": readout,
        }
        about |= {} if part is None else {"part": json.dumps(part)}
        scales: dict[str, Any] = {"layer": selected, "text": range(len(prompts))}
        if out is None:
            values = np.empty((len(selected), len(prompts), hidden), np.float32)
            fill(values)
            coordinates = {**scales, "depth": ("layer", depth)}
            return xr.DataArray(values, coordinates, (*scales, "hidden"), NAME, about)
        with hdf5.create(Path(out), SCHEMA, VERSION, provenance(**about)) as file:
            for name, labels in {**scales, "hidden": range(hidden)}.items():
                hdf5.add_scale(file, name, labels, SCALES[name])
            described = {"unit": "", "description": "relative depth"}
            hdf5.write(hdf5.add_array(file, "depth", ["layer"], "f8", **described), ..., depth)
            described = {"unit": "activation", "description": "pooled vectors of the texts"}
            dims = [*scales, "hidden"]
            array = hdf5.add_array(file, NAME, dims, "f4", **described, whole=dims[1:])
            fill(array)
            array.flush()  # as `hdf5.write`
    data = xr.open_dataset(out, engine="h5netcdf", driver_kwds=hdf5.UNLOCKED).set_coords("depth")
    return data[NAME].drop_vars("hidden")


def extract(
    model: Any,
    corpus: Any,
    out: str | Path,
    tokenizer: Any = None,
    *,
    views: Sequence[Any] = (),
    column: str | None = None,
    revision: str = "main",
    device: str = "auto",
    **settings: Any,
) -> xr.Dataset:
    """Write the activations file of a workflow: all that metrics are computed from.

    Parameters
    ----------
    model, tokenizer, views, column, revision, device
        As for `layerwise.analyse`.
    corpus
        Texts, images or recordings as `layerwise.analyse` takes them, or a corpus of a run
        (``results/corpora/NAME.parquet``).
    out : path
        The HDF5 file to write.
    **settings
        Keys of a config's section ``extract``, such as ``tokens=["all", "drop_first"]``,
        ``sublayers=["mlp"]`` or ``token_states=True``.

    Returns
    -------
    xarray.Dataset
        The file's arrays with their labels, read when they are needed; `Results.activations`
        opens the files of a run.

    Examples
    --------
    >>> import layerwise as lw
    >>> data = lw.extract(model, texts, "texts.h5", tokenizer, token_states=True, layers=[3])
    >>> data["pooled"].sel(protocol="paper", tokens="all", layer=3, view=0).shape
    (24, 32)
    >>> first, after = data["offset"].values[:2]  # the tokens of the first text
    >>> data["token_states"].sel(token_layer=3).isel(token=slice(first, after)).shape[1]
    32

    Raises
    ------
    LayerwiseError
        If a setting is unknown, the model cannot be read, or the texts do not suit it.
    """
    import xarray as xr

    from layerwise.activations.extract import extract as write
    from layerwise.config.settings import ExtractSettings
    from layerwise.io import hdf5
    from layerwise.metrics.registry import all_metrics
    from layerwise.models.opening import open_model

    all_metrics()  # their files declare further arrays
    given = parse(ExtractSettings, settings, "extract")
    copies = [prompts_of(one, column) for one in (corpus, *views)]
    with open_model(
        model, tokenizer, revision=revision, device=device, dtype=given.dtype
    ) as loaded:
        write(
            loaded,
            corpus="texts",
            prompts=[str(n) for n in range(len(copies[0]))],
            views=copies,
            settings=given,
            target=Path(out),
            attributes={},
        )
    return xr.open_dataset(out, engine="h5netcdf", driver_kwds=hdf5.UNLOCKED)
