"""Results of a run, and the layers of a model, in a line of Python each.

>>> import layerwise as lw
>>> run = lw.open("results")  # doctest: +SKIP
>>> run.metrics("prompt_entropy", model="smollm2-135m")  # doctest: +SKIP
>>> table = lw.analyse("HuggingFaceTB/SmolLM2-135M", texts)  # doctest: +SKIP
>>> lw.plot(table, "prompt_entropy")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise.analysis import labels_of, measure, prompts_of, score_labels
from layerwise.config.studies import several
from layerwise.errors import check_name
from layerwise.run.results import Results, open  # noqa: A004

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from layerwise.models.load import LoadedModel
    from layerwise.tasks.labelled import Labels

__all__ = ["Results", "analyse", "open", "plot"]

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
