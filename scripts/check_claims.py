"""Which claims about metrics and scores stand on the authors' published tables.

    python scripts/check_claims.py --scores ../shared/published/mteb_scores.csv.gz \\
        --metrics ../shared/published/metrics.csv.gz --page docs/published-claims.md

Fills the tables of the page, between its markers, with intervals and p by `layerwise.statistics`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from layerwise.association.measures import embed, strengths
from layerwise.association.published import (
    TASK_OF_DATASET,
    published_scores,
    read_table,
)
from layerwise.association.sources import text_source
from layerwise.cli import parser, run
from layerwise.errors import LayerwiseError
from layerwise.files import replacing
from layerwise.statistics import depth, headlines, matching, tasks

MODELS = ("Pythia-14m", "Pythia-70m", "Pythia-160m")
NAMES = {
    "entropy_sentence": "prompt entropy",
    "entropy_dataset": "dataset entropy",
    "dime": "DiME",
    "infonce": "InfoNCE",
    "lidar": "LiDAR",
    "curvature": "curvature",
}
# The layer that is said to be good: where the metric is lowest (-1) or highest (+1).
LOWEST = {"prompt entropy": -1, "dataset entropy": -1, "DiME": -1, "InfoNCE": -1, "LiDAR": 1}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("--scores", type=Path, required=True, help="published MTEB scores")
    made.add_argument("--metrics", type=Path, required=True, help="published metrics")
    made.add_argument("--page", type=Path, required=True, help="page whose tables are filled")
    return made.parse_args()


def score_tables(path: Path) -> tuple[dict[str, np.ndarray], pd.Series]:
    """Scores x 100 of each model, shape (32, L), and the type of each task."""
    tidy = published_scores(read_table(path))
    mean = tidy.groupby(["model", "task", "layer"])["main_score"].mean() * 100
    types = tidy.drop_duplicates("task").set_index("task")["task_type"].sort_index()
    return {m: mean[m].unstack("layer").loc[types.index].to_numpy() for m in MODELS}, types


def metric_curves(path: Path, order: pd.Index) -> dict[tuple[str, str], pd.DataFrame]:
    """Raw curves (tasks x layers) of each model and metric, on each task's own test texts."""
    table = read_table(path)
    table = table[(table["normalization"] == "raw") & table["dataset"].isin(TASK_OF_DATASET)]
    # Data sets without a test split there have their training texts.
    table = table.sort_values("split").drop_duplicates(
        ["size", "dataset", "metric", "layer"], keep="first"
    )
    table = table.assign(task=table["dataset"].map(TASK_OF_DATASET))
    found = {}
    for (size, metric), part in table.groupby(["size", "metric"]):
        wide = part.pivot(index="task", columns="layer", values="value").dropna()
        if len(wide) >= 10:
            found[f"Pythia-{size}", NAMES[metric]] = wide.reindex(
                [t for t in order if t in wide.index]
            )
    return found


def gains(scores: dict[str, np.ndarray], types: pd.Series) -> str:
    """What an earlier layer brings over the last one, over tasks."""
    rows = [
        "| model | best layer | apparent lead | on a new task | 95 % interval | may be best | "
        "as good as the last within 1 point | tasks best served earlier | by chance |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    sources = [text_source(t) for t in types.index]
    signs, counts = [], []
    for model, s in scores.items():
        found = tasks.gain_new_task(s, s[:, -1], sources)
        signs.append(found.sign)
        likely = np.flatnonzero(tasks.best_set(s, sources))
        p = tasks.equivalent(s[:, :-1] - s[:, [-1]], 1.0, sources)
        same = [int(i) for i in np.flatnonzero(p <= 0.05)]
        earlier = headlines.earlier_is_best(list(s))
        counts.append(earlier)
        rows.append(
            f"| {model} | {found.layer} of {s.shape[1] - 1} | {found.apparent:.1f} | "
            f"{found.value:.1f} | {found.low:.1f} to {found.high:.1f} | "
            f"{', '.join(map(str, likely))} | {', '.join(map(str, same)) or 'none'} | "
            f"{earlier.k} of {earlier.n} | {earlier.expected:.1f} (p {earlier.p:.2f}) |"
        )
    apart = headlines.told_apart(signs)
    said = apart.text("A lead over the last layer that can be told from 0", "models")
    rows += ["", f"{said} (p {apart.p:.1g})."]
    return "\n".join(rows)


def by_type(scores: dict[str, np.ndarray], types: pd.Series) -> str:
    """The same for each type of task."""
    rows = [
        "| model | type | tasks (text sources) | on a new task | 95 % interval | |",
        "|---|---|---|---|---|---|",
    ]
    for model, s in scores.items():
        for kind in dict.fromkeys(types):
            which = (types == kind).to_numpy()
            sources = [text_source(t) for t in types.index[which]]
            found = tasks.gain_new_task(s[which], s[which, -1], sources)
            said = {1: "earlier is better", -1: "last is better", 0: "cannot be told"}[found.sign]
            if found.low == found.high == 0:
                said = "the last is chosen each time"
            rows.append(
                f"| {model} | {kind} | {which.sum()} ({len(set(sources))}) | {found.value:.1f} | "
                f"{found.low:.1f} to {found.high:.1f} | {said} |"
            )
    return "\n".join(rows)


def middle(scores: dict[str, np.ndarray], types: pd.Series) -> str:
    """The middle layer, named beforehand, against the first and the last."""
    rows = ["| model | middle layer | over the last | over layer 0 |", "|---|---|---|---|"]
    sources = [text_source(t) for t in types.index]
    for model, s in scores.items():
        at = (s.shape[1] - 1) // 2
        cells = [
            f"{i.value:+.1f} ({i.low:.1f} to {i.high:.1f})"
            for i in (tasks.interval(s[:, at] - s[:, r], sources) for r in (-1, 0))
        ]
        rows.append(f"| {model} | {at} | {cells[0]} | {cells[1]} |")
    return "\n".join(rows)


def associations(
    scores: dict[str, np.ndarray], types: pd.Series, curves: dict[tuple[str, str], pd.DataFrame]
) -> str:
    """Size of each association, that with other models' scores, chance, and given depth."""
    rows = [
        "| model | metric | tasks | dCor | chance (95 %) | dCor with others' scores | "
        "Spearman | r given depth | chance (95 %) | points of score per sd, given depth |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model, s in scores.items():
        layers = s.shape[1]
        for metric in LOWEST:
            wide = curves[model, metric]
            which = np.array([types.index.get_loc(t) for t in wide.index])
            x, y = wide.to_numpy().mean(axis=0), s[which].mean(axis=0)
            others = [
                _dcor(x, matching.on_common_depths([scores[o][which].mean(axis=0)], layers)[0])
                for o in scores
                if o != model
            ]
            sources = [text_source(t) for t in wide.index]
            beyond = depth.beyond_depth(x, y)
            slope = depth.slope_beyond_depth(x, s[which], sources)
            spearman = spearmanr(x, y).statistic
            rows.append(
                f"| {model} | {metric} | {len(wide)} | {_dcor(x, y):.2f} | "
                f"{depth.chance_level(layers, 'dcor'):.2f} | {others[0]:.2f}, {others[1]:.2f} | "
                f"{spearman:+.2f} | {float(beyond.r):+.2f} | "
                f"{depth.chance_level(layers, 'r'):.2f} | "
                f"{slope.value:+.2f} ({slope.low:.2f} to {slope.high:.2f}) |"
            )
    return "\n".join(rows)


def _dcor(x: np.ndarray, y: np.ndarray) -> float:
    return float(strengths("dcor", embed("dcor", x[None]), embed("dcor", y[None]))[0, 0])


def own_texts(
    scores: dict[str, np.ndarray], types: pd.Series, curves: dict[tuple[str, str], pd.DataFrame]
) -> str:
    """Does a metric on a task's own texts know that task's scores?"""
    rows = [
        "| model | metric | text sources | own | another's | p (of 5 metrics) | p, within types |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, s in scores.items():
        names = list(LOWEST)
        common = set.intersection(*(set(curves[model, m].index) for m in names))
        order = [t for t in types.index if t in common]
        x = np.stack([curves[model, m].loc[order].to_numpy() for m in names])
        y = s[[types.index.get_loc(t) for t in order]]
        # Tasks of the same texts have the same metric: they are one unit, and their scores a mean.
        units = [text_source(t) for t in order]
        first = [units.index(u) for u in dict.fromkeys(units)]
        same = np.array([[u == units[i] for u in units] for i in first], dtype=float)
        same /= same.sum(axis=1, keepdims=True)
        x, y = same @ x, same @ y
        kinds = [types[order[i]] for i in first]
        free = matching.match(x, y)
        within = matching.match(x, y, kinds)
        rows += [
            f"| {model} | {m} | {len(first)} | {free.value[i]:+.2f} | {free.strangers[i]:+.2f} | "
            f"{free.p_all[i]:.3f} | {within.p_all[i]:.3f} |"
            for i, m in enumerate(names)
        ]
    return "\n".join(rows)


def rules(
    scores: dict[str, np.ndarray], types: pd.Series, curves: dict[tuple[str, str], pd.DataFrame]
) -> str:
    """The layer that each metric picks, its lead over the last layer, and its regret."""
    rows = [
        "| rule | picks in 14m, 70m, 160m | lead over the last layer (95 % interval) | "
        "regret (95 % interval) |",
        "|---|---|---|---|",
    ]
    sources = [text_source(t) for t in types.index]
    picks: dict[str, list[int]] = {}
    for metric in LOWEST:
        for sign, word in ((-1, "lowest"), (1, "highest")):
            picks[f"{word} {metric}"] = [
                int((sign * curves[m, metric].to_numpy().mean(axis=0)).argmax()) for m in scores
            ]
    picks["middle layer"] = [(s.shape[1] - 1) // 2 for s in scores.values()]
    picks["layer 0"] = [0] * len(scores)
    for name, at in picks.items():
        leads, regrets = [], []
        for pick, s in zip(at, scores.values(), strict=True):
            i = tasks.interval(s[:, pick] - s[:, -1], sources)
            r = tasks.regret(s, pick, sources)
            leads.append(f"{i.value:+.1f} ({i.low:.1f} to {i.high:.1f})")
            regrets.append(f"{r.value:.1f} ({r.low:.1f} to {r.high:.1f})")
        rows.append(
            f"| {name} | {', '.join(map(str, at))} | {'; '.join(leads)} | {'; '.join(regrets)} |"
        )
    ten = np.array([picks[n] for n in picks])
    means = [s.mean(axis=0) for s in scores.values()]
    best = headlines.best_rule(ten, means)
    last = float(np.mean([m.max() - m[-1] for m in means]))
    rows += [
        "",
        f"{len(ten)} rules, {best.distinct} of them distinct. Best over the three models: "
        f"{list(picks)[best.rule]}, mean regret {best.apparent:.2f}; of the rule chosen without "
        f"the model it is judged on: {best.nested:.2f}; of the last layer: {last:.2f}.",
    ]
    return "\n".join(rows)


def fill(page: str, name: str, text: str) -> str:
    """The page with the part between ``<!-- name -->`` and ``<!-- end -->`` replaced.

    Raises
    ------
    LayerwiseError
        If the page has no such part.
    """
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(page):
        raise LayerwiseError(f"The page has no part <!-- {name} --> … <!-- end --> to fill.")
    return pattern.sub(lambda m: m[1] + text + "\n" + m[2], page)


def main(given: argparse.Namespace) -> None:
    """Fill the page."""
    scores, types = score_tables(given.scores)
    curves = metric_curves(given.metrics, types.index)
    page = given.page.read_text(encoding="utf-8")
    page = fill(page, "gains", gains(scores, types))
    page = fill(page, "types", by_type(scores, types))
    page = fill(page, "middle", middle(scores, types))
    page = fill(page, "associations", associations(scores, types, curves))
    page = fill(page, "own texts", own_texts(scores, types, curves))
    page = fill(page, "rules", rules(scores, types, curves))
    with replacing(given.page) as partial:
        partial.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    run(main, arguments())
