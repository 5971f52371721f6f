"""Write numbers and tables into the pages: `python docs/render.py`, a part of `make regenerate`.

A page marks a number as `<!--n:gemma.lead-->6.3<!---->`, a table as `<!--table:pooling-->`
up to `<!--end-->`. Both come from the tables in docs, never from the page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import yaml

from layerwise.config import Config
from layerwise.config.studies import all_kinds
from layerwise.errors import Code
from layerwise.metrics.registry import all_metrics, sections
from layerwise.run.plan import Plan

DOCS = Path(__file__).resolve().parent
PAGES = sorted([*DOCS.parent.glob("*.md"), *DOCS.glob("*.md")])
NUMBER = re.compile(r"(<!--n:([^\s>]+)-->).*?(<!---->)")
TABLE = re.compile(r"(<!--table:([\w-]+)-->\n).*?(<!--end-->)", re.DOTALL)
LANGUAGE_MODELS = {
    "gemma-3-270m": ("gemma", "Gemma-3-270M"),
    "smollm2-135m": ("smollm2", "SmolLM2-135M"),
    "all-mpnet-base-v2": ("mpnet", "all-mpnet-base-v2"),
    "minilm-l6": ("minilm", "MiniLM-L6"),
}
RELEASED = ("Pythia-70m", "Pythia-160m", "Pythia-410m", "mamba-370m", "bert-base")
AS_IS = ("cluster_rates", "null_rates", "rule_losses", "gpu_waits", "precision")
LEAD = ("lead", "lead_low", "lead_high")
SELECTORS = {
    **{rule: rule for rule in ("model output", "middle layer", "best layer", "LOES", "consensus")},
    "curvature": "curvature", "prompt_entropy": "prompt entropy",
    "dataset_entropy": "dataset entropy", "lidar": "LiDAR", "dime": "DiME", "infonce": "InfoNCE",
    "effective_rank": "effective rank", "anisotropy": "anisotropy", "rankme": "RankMe",
    "nesum": "NESum",
}  # fmt: skip


def main() -> None:
    """Write all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(rendered(text), encoding="utf-8")


def rendered(text: str) -> str:
    """A page with the numbers and tables of its marks."""
    text = NUMBER.sub(lambda mark: f"{mark[1]}{numbers()[mark[2]]}{mark[3]}", text)
    return TABLE.sub(lambda mark: f"{mark[1]}\n{TABLES[mark[2]]()}\n{mark[3]}", text)


def read(name: str) -> pd.DataFrame:
    """A table of docs."""
    return pd.read_csv(DOCS / f"{name}.csv", dtype={"layer": "Int64"})


def text(value: float, decimals: int = 1) -> str:
    """A number as pages write it."""
    return f"{value:.{decimals}f}".replace("-", "−")


def points(share: float) -> str:
    """A share as percentage points."""
    return text(100 * share)


def interval(
    row: pd.Series,
    decimals: int = 1,
    scale: float = 100,
    names: Sequence[str] = ("value", "low", "high"),
) -> str:
    """A value with its 95% CI."""
    value, low, high = (text(scale * row[name], decimals) for name in names)
    return f"{value} ({low} to {high})" if np.isfinite(row[names[1]]) else value


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    first, *others = (f"| {' | '.join(map(str, cells))} |\n" for cells in (head, *rows))
    return "".join([first, f"{'|---' * len(head)}|\n", *others])


@cache
def numbers() -> dict[str, str]:
    """All numbers by name, and the sentence of each kind of figure."""
    parts = (language_models, published, quickstart, ablation, additions, selection, kinds)
    return dict(pair for part in parts for pair in part())


def language_models() -> Iterator[tuple[str, str]]:
    """Numbers of real_models.csv."""
    for row in read("real_models").to_dict("records"):
        name = LANGUAGE_MODELS[row["model"]][0]
        yield f"{name}.lead", interval(pd.Series(row), names=LEAD)
        for column in ("entropy", "entropy_drop_first", "entropy_without_dimensions"):
            yield f"{name}.{column}", text(row[column], 2)
        for column in ("best", "output", "middle", *(c for c in row if c.startswith("score_"))):
            yield f"{name}.{column}", points(row[column])
        yield f"{name}.related", f"{row['n_above_null']} of {row['n_related']}"
        for column in (c for c in row if c.startswith("best_residual")):
            yield f"{name}.{column}", str(row[column]).removesuffix(".0")


def published() -> Iterator[tuple[str, str]]:
    """Numbers of the authors' scores, and counts of models whose best layer is not the last."""
    leads = published_leads()
    for model, row in leads.iterrows():
        yield f"{model}.layer", f"{row['layer']} of {row['last layer']:.0f}"
        yield f"{model}.best", f"{row['layer']}"
        yield f"{model}.score", points(row["score"])
        yield f"{model}.output", points(row["output's score"])
        yield f"{model}.ahead", f"{row['tasks ahead']:.0f} of {row['tasks']:.0f}"
        yield f"{model}.median", points(row["lead in the median task"])
    yield "published.models", str(len(leads))
    yield "published.leading", str((leads["lead"] > 0).sum())
    yield "published.significant", str((leads["lead, low"] > 0).sum())
    counts = read("claims").groupby("paper")["verdict"].value_counts()
    for (paper, verdict), n in counts.items():
        yield f"claims.{paper}.{verdict.replace(' ', '-')}", str(n)
    for paper, n in counts.groupby("paper").sum().items():
        yield f"claims.{paper}", str(n)


def published_leads() -> pd.DataFrame:
    """The best layer of each published model against its output."""
    rows = read("published").query("study == 'score_by_size'")
    leads = rows.pivot(index="model", columns="what", values="value")
    leads["layer"] = rows.groupby("model")["layer"].first()
    return leads.loc[rows["model"].unique()]


def quickstart() -> Iterator[tuple[str, str]]:
    """Numbers of the quickstart."""
    table = read("quickstart")
    scores = table[table["study"] == "final_norm"].set_index(["representation", "layer"])["value"]
    for (representation, layer), value in scores.items():
        yield f"smollm2.{representation.replace(', ', ',')}.{layer}", points(value)
    rows = table.query("study == 'metrics_by_depth' and metric == 'prompt_entropy'")
    for row in rows[rows["model"] == "smollm2-135m"].to_dict("records"):
        yield f"smollm2.entropy.{row['representation']}.{row['layer']}", text(row["value"], 2)
    rows = table[table["study"] == "sink_rate"]
    for what, value in rows.dropna(subset="what")[["what", "value"]].to_numpy():
        yield f"sinks.{what.replace(' ', '-')}", text(value, 2)
    yield "sinks.norm", text(rows.query("metric == 'largest_norm'")["value"].max(), 0)
    mlp = table.query("study == 'sublayers' and metric == 'prompt_entropy' and layer == 12")
    for row in mlp.dropna(subset="sublayer").to_dict("records"):
        yield f"sublayers.{row['sublayer']}".replace(" ", "-"), text(row["value"], 2)
    rows = table[table["study"] == "best_layers"]
    for row in rows[rows["revision"] == "main"].to_dict("records"):
        name = f"{LANGUAGE_MODELS[row['model']][0]}.{row['representation']}"
        yield f"{name}.best", f"{row['layer']}"
        yield f"{name}.lead", points(row["value"])
    rows = table.query("study == 'metrics_over_checkpoints' and metric == 'prompt_entropy'")
    rows = rows.query("representation == 'all' and layer == 6")
    for row in rows.to_dict("records"):
        yield f"gpt-neox.{row['revision']}", text(row["value"], 2)
    rows = table[table["study"] == "metric_vs_score"].drop_duplicates(["model", "metric"])
    above = (rows["association"].abs() > rows["null95"]).sum()
    yield "associations.above", f"{above} of {len(rows)}"


def ablation() -> Iterator[tuple[str, str]]:
    """Numbers of SmolLM2 without the write of block 12."""
    table = read("ablation").set_index(["study", "y", "model", "representation", "layer"])
    table = table.sort_index()
    value = table["value"]
    norms, sinks = value["sink", "largest_norm"], value["sink", "sink_rate"]
    for model in ("whole", "without-12"):
        yield f"{model}.norm", text(norms[model, "all", 12], 1)
    yield "whole.sinks", text(sinks["whole", "all"].loc[14:30].min(), 2)
    yield "without-12.sinks", text(sinks["without-12", "all"].loc[14:30].max(), 2)
    entropy = table.loc["sink_differences", "prompt_entropy", "without-12", "all", 12]
    yield "without-12.entropy", interval(entropy.squeeze(), 2, 1)
    score = table.loc["score_differences", "score difference", "without-12"]
    yield "without-12.output", interval(-score.loc["all", 30].squeeze())
    yield "without-12.p", text(table.loc["score_differences", "p_adjusted"].min(), 2)
    yield "without-12.residual", interval(score.loc["all, residual", 12].squeeze())


def additions() -> Iterator[tuple[str, str]]:
    """Numbers of additions.csv."""
    for row in read("additions").to_dict("records"):
        name = f"{row['what']}.{'' if pd.isna(row['group']) else row['group']}"
        scale, decimals = (100, 0) if "share" in row["what"] else (1, 2)
        cell = interval(pd.Series(row), decimals, scale)
        yield re.sub(r"[\s,']+", "-", name.rstrip(".")), cell


def selection() -> Iterator[tuple[str, str]]:
    """Points that rules lose in Pythia-410m and on average over Pythia's sizes."""
    losses = pd.read_csv(DOCS.parent / "lib" / "papers" / "losses.csv")
    losses = losses[losses["model"].str.startswith("Pythia") & (losses["corpus"] != "task texts")]
    for rule, rows in losses.groupby("rule"):
        one = rows[rows["model"] == "Pythia-410m"]["loss"].iloc[0]
        yield f"loses.{rule}.410m".replace(" ", "-"), text(one)
        yield f"loses.{rule}.mean".replace(" ", "-"), text(rows["loss"].mean())


def kinds() -> Iterator[tuple[str, str]]:
    """What each kind of figure shows."""
    for kind in all_kinds().values():
        end = "" if kind.about.endswith("?") else "."
        yield f"kind.{kind.name}", f"{kind.about[0].upper()}{kind.about[1:]}{end}"
    yield "error.codes", ", ".join(f"`{code}`" for code in get_args(Code))


# Tables


def scores_of_language_models() -> str:
    """Best layer, output and middle layer of the models of `make real`."""
    table = read("real_models")
    best = [
        f"{name}: {points(score)}" if name == "output" else f"{name} of {last}: {points(score)}"
        for name, last, score in table[["best_layer", "last_layer", "best"]].to_numpy()
    ]
    lead = [interval(row, names=LEAD) for _, row in table.iterrows()]
    related = table["n_above_null"].astype(str) + " of " + table["n_related"].astype(str)
    rows = [
        ["best layer", *best],
        ["output", *table["output"].map(points)],
        ["middle layer", *table["middle"].map(points)],
        ["lead of the best layer", *lead],
        ["metrics above the null level", *related],
    ]
    return markdown(["", *(shown for _, shown in LANGUAGE_MODELS.values())], rows)


def causes() -> str:
    """Entropy at its lowest layer, with what may cause it left out."""
    table = read("real_models")
    rows = [["layer of the lowest prompt entropy", *table["lowest_layer"]]]
    for label, column, decimals in (
        ("prompt entropy there (nats)", "entropy", 2),
        ("without the first token", "entropy_drop_first", 2),
        ("without its three largest dimensions", "entropy_without_dimensions", 2),
        ("largest norm ÷ median norm", "largest_norm", 1),
        ("largest dimension's share", "largest_dimension", 2),
    ):
        rows.append([label, *(text(value, decimals) for value in table[column])])
    return markdown(["", *(shown for _, shown in LANGUAGE_MODELS.values())], rows)


def cures() -> str:
    """Scores of both decoders at the layer of the lowest entropy."""
    table = read("real_models").set_index("model").loc[["gemma-3-270m", "smollm2-135m"]]
    rows = [
        [label, *table[f"score_{column}"].map(points)]
        for label, column in (
            ("mean over all tokens", "residual"),
            ("after the final norm", "final_norm"),
            ("without the first token", "residual_drop_first"),
            ("without three dimensions", "residual_without_dimensions"),
        )
    ]
    return markdown(["", "Gemma-3-270M", "SmolLM2-135M"], rows)


def rules() -> str:
    """Points that rules lose in the models of `make real`."""
    table = read("real_rules").pivot(index="metric", columns="model", values="regret")
    kept = ["model output", "middle layer", "LOES", "consensus", "curvature", "prompt_entropy"]
    rows = [
        [SELECTORS[str(rule)], *regrets.map(lambda v: "–" if np.isnan(v) else points(v))]
        for rule, regrets in table.loc[[*kept, "infonce"], list(LANGUAGE_MODELS)].iterrows()
    ]
    return markdown(["", *(shown for _, shown in LANGUAGE_MODELS.values())], rows)


def leads() -> str:
    """Lead of the best layer over the output in the published scores."""
    rows = [
        [
            model,
            f"{row['layer']} of {row['last layer']:.0f}",
            interval(row, names=("lead", "lead, low", "lead, high")),
            f"{row['tasks ahead']:.0f} of {row['tasks']:.0f}",
        ]
        for model, row in published_leads().iterrows()
    ]
    return markdown(["model", "best layer", "lead (points)", "tasks ahead"], rows)


def pooling() -> str:
    """Scores of eight ways of pooling at some layers."""
    table = read("pooling").set_index(["model", "layer"])
    columns = [("smollm2-135m", layer) for layer in (3, 12, 20, 28, 30)] + [("minilm-l6", 6)]
    names = {
        "final norm, mean": "mean after the final norm", "mean": "mean",
        "mean without first": "mean without the first token",
        "mean of unit tokens": "mean of tokens of unit length", "median": "median",
        "last token": "last token", "final norm, last token": "last token after the final norm",
        "max": "maximum",
    }  # fmt: skip
    best = table.loc[columns].max(axis=1)
    rows = [
        [shown, *(f"**{v:.1f}**" if v == best[at] else f"{v:.1f}" for at, v in
         table.loc[columns, name].items())]
        for name, shown in names.items()
    ]  # fmt: skip
    return markdown(["pooling", "SmolLM2, layer 3", 12, 20, 28, 30, "MiniLM, layer 6"], rows)


def sinks() -> str:
    """Norm, entropy and sink rate of SmolLM2 at some layers."""
    rows = read("quickstart").query("study == 'sink_rate'").dropna(subset="layer")
    at = rows.pivot(index="metric", columns="layer", values="value")
    layers = [2, 3, 4, 10, 11, 12, 13, 30]
    return markdown(
        ["layer", *layers],
        [
            [label, *(text(v, decimals) for v in at.loc[metric, layers])]
            for label, metric, decimals in (
                ("largest norm ÷ median norm", "largest_norm", 1),
                ("prompt entropy (nats)", "prompt_entropy", 2),
                ("sink rate", "sink_rate", 2),
            )
        ],
    )


def probes() -> str:
    """Accuracies of linear probes of `make real`."""
    table = read("real").set_index(["study", "model", "task", "representation", "layer"])
    table = table.sort_index()
    rows = []
    for label, study, model, task, tokens, layers in (
        ("rxnfp's BERT: own products", "fine_tuning_accuracy", "rxn-bert", "own products", "all",
         (6, 7, 12)),
        ("rxnmapper's ALBERT: own products", "fine_tuning_accuracy", "rxn-albert", "own products",
         "all", (3, 6, 12)),
        ("DINOv2-small, patches: digits", "images_accuracy", None, None, "patches", (0, 9, 12)),
        ("DINOv2-small, class token: digits", "images_accuracy", None, None, "class", (0, 11, 12)),
        ("AntiBERTy: gene families", "antibodies_accuracy", None, None, "all", (0, 7, 8)),
    ):  # fmt: skip
        of = table.loc[study].reset_index()
        of = of[(of["model"] == model) | (model is None)]
        of = of[(of["task"] == task) | (task is None)]
        of = of[(of["representation"] == tokens) | of["representation"].isna()]
        of = of.set_index("layer")
        cells = [f"layer {n}: {interval(of.loc[n], 2, 1)}" for n in layers]
        rows.append([label, *cells, text(of["chance"].iloc[0], 2)])
    return markdown(["model: what is read", "before", "best", "output", "guessing"], rows)


def selectors() -> str:
    """Nested regret of each selector in the published scores; bold where the 95% CI excludes 0."""
    table = read("selectors").query("of == 'release' and corpus != 'task texts'")
    cells = {}
    for row in table.to_dict("records"):
        value = points(row["nested_regret"])
        value = f"**{value}**" if row["nested_low"] > 0 else value
        cells[row["metric"], row["model"]] = value
    known = {metric for metric, _ in cells}
    rows = [
        [shown, *(cells.get((rule, model), "–") for model in RELEASED)]
        for rule, shown in SELECTORS.items()
        if rule in known
    ]
    return markdown(["selector", *RELEASED], rows)


def types() -> str:
    """Lead of the best layer by type of task."""
    table = read("additions").query("what == 'lead of the best layer'")
    table[["model", "type"]] = table["group"].str.split(", ", expand=True)
    wide = table.pivot(index="model", columns="type", values="value")
    wide = wide.loc[table["model"].unique()]
    rows = [
        [model, *(text(v) for v in row)]
        for model, row in zip(wide.index, wide.to_numpy(), strict=True)
    ]
    return markdown(["model", *wide.columns], rows)


def ends() -> str:
    """Gain of layers that each task selects by an end of a metric."""
    table = read("published").query("study == 'table_2_layer_per_task' and what == 'gain'")
    gain = table.set_index(["model", "metric", "end"])["value"]
    columns = [(m, end) for m in ("dime", "dataset_entropy") for end in ("lowest", "highest")]
    rows = [
        [size, *(text(100 * gain[f"Pythia-{size}", metric, end]) for metric, end in columns)]
        for size in ("14m", "70m", "160m", "410m")
    ]
    head = ["lowest DiME", "highest DiME", "lowest dataset entropy", "highest dataset entropy"]
    return markdown(["Pythia", *head], rows)


def over() -> str:
    """Distance correlations over layers and over tasks."""
    table = read("published")
    at = {
        study: table[table["study"] == study].set_index(["metric", "what"])["value"]
        for study in ("figure_3_metric_vs_score", "figure_3_over_tasks")
    }
    rows = [
        [SELECTORS[m], *(text(of[m, what], 2) for of in at.values()
         for what in ("association", "null95"))]
        for m in ("prompt_entropy", "dataset_entropy", "curvature", "infonce", "dime", "lidar")
    ]  # fmt: skip
    return markdown(["metric", "over layers", "null 95%", "over tasks", "null 95%"], rows)


def representations() -> str:
    """Mean scores of SmolLM2 by what is pooled."""
    table = read("pooling").set_index(["model", "layer"]).loc["smollm2-135m"]
    layers = [3, 8, 11, 12, 16, 20, 28, 30]
    rows = [
        [shown, *(text(v) for v in table.loc[layers, name])]
        for name, shown in (
            ("mean", "residual stream"),
            ("mean without first", "without the first token"),
            ("final norm, mean", "final norm"),
        )
    ]
    return markdown(["layer", *layers], rows)


def rates() -> str:
    """Simulated rates of each score of `choose`."""
    table = read("score_rates").set_index(["score", "labels"])
    rows = [
        [score, *(f"{text(table.loc[(score, labels), column])}" for labels in ("noise", "signal")
         for column in ("difference", "significant"))]
        for score in table.index.get_level_values(0).unique()
    ]  # fmt: skip
    head = ["noise: missed", "significant", "signal: missed", "significant"]
    return markdown(["score", *head], rows)


def families() -> str:
    """Verified families, those that are alike in a row."""
    table = pd.read_csv(DOCS / "verified.csv", dtype=str).fillna("")
    table = table[(table["weights"] == "random") & (table["refused"] == "")]
    readout = table["readout"].where(table["readout"] == "none", "yes")
    table = table.assign(
        final_norm=readout.replace("none", "no"),
        parts=np.where(table["sublayers"].str.startswith("none"), "no", "yes"),
    )
    rows = [
        [batches.removeprefix("of "), norm, parts, ", ".join(group["model"])]
        for (batches, norm, parts), group in table.groupby(["batches", "final_norm", "parts"])
    ]
    return markdown(["prompts in a batch", "readout", "sublayers", "families"], rows)


def refused() -> str:
    """Families that are refused."""
    table = pd.read_csv(DOCS / "verified.csv", dtype=str).fillna("")
    table = table[table["refused"] != ""]
    return markdown(["family", "refused because"], table[["model", "refused"]].to_numpy())


def real_weights() -> str:
    """Models that were verified with their weights."""
    table = pd.read_csv(DOCS / "verified.csv", dtype=str).fillna("")
    table = table[table["weights"] == "real"]
    columns = ["model", "layers", "readout", "hidden_states"]
    return markdown(
        ["model", "layers", "readout", "layers equal to `hidden_states`"],
        table[columns].to_numpy(),
    )


def metrics() -> str:
    """All metrics."""
    better = {1: "higher", -1: "lower", None: "–"}
    rows = [
        [f"[`{m.name}`](#{m.name})", m.axis, better[m.direction], m.range, m.source]
        for m in all_metrics().values()
    ]  # fmt: skip
    return markdown(["name", "metric", "better", "range", "source"], rows)


def settings() -> str:
    """Settings of single metrics."""
    rows = [
        [f"`{section}.{key}`", f"`{default}`",
         " ".join(str(model.model_fields[key].description).split())]
        for section, model in sections().items()
        for key, default in model().plain().items()
    ]  # fmt: skip
    return markdown(["setting", "default", "meaning"], rows)


def as_is(name: str) -> str:
    """A table of docs as it is: of simulations and timings, whose script the page names."""
    table = pd.read_csv(DOCS / f"{name}.csv", dtype=str, keep_default_na=False)
    return markdown([re.sub(r"\.\d$", "", head) for head in table], table.to_numpy())


def jobs() -> str:
    """Jobs of the tutorial's change: of another key, and `weights`, which reads metrics."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    given = yaml.safe_load((DOCS.parent / "config.yaml").read_text(encoding="utf-8"))
    change = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)[0])
    before, after = (
        keys(given),
        keys(given | change | {"studies": given["studies"] | change["studies"]}),
    )
    due = Counter(rule for rule, *of in after if before[rule, *of] != after[rule, *of])
    due |= {"weights": 1, "all": 1}
    order = ("metrics", "associate", "figure", "weights", "explore", "report", "all")
    assert set(due) == set(order), due
    rows = [("job", "count"), ("-" * 9, "-" * 7), *((rule, due[rule]) for rule in order)]
    lines = [f"{rule:9}  {n:>7}\n" for rule, n in [*rows, ("total", due.total())]]
    return f"```\n{''.join(lines)}```\n"


def keys(given: dict[str, Any]) -> dict[tuple[str, ...], str]:
    """Keys of all jobs that a change of metrics or studies might repeat."""
    plan = Plan(Config.of(given))
    found = {(rule,): plan.key(rule) for rule in ("best_layers", "explore", "report")}
    for point, corpora in plan.measured.items():
        at = {"model": point[0], "revision": point[1]}
        for rule in ("extract", "metrics"):
            found |= {(rule, *point, c): plan.key(rule, **at, corpus=c) for c in corpora}
    found |= {
        ("evaluate", *point): plan.key("evaluate", model=point[0], revision=point[1])
        for point in plan.scored
    }
    for name, study in plan.studies.items():
        found["figure", name] = plan.key("figure", study=name)
        if "associations" in study.needs:
            found["associate", name] = plan.key("associate", study=name)
    return found


TABLES: dict[str, Callable[[], str]] = {
    "language-models": scores_of_language_models,
    "causes": causes,
    "cures": cures,
    "rules": rules,
    "leads": leads,
    "pooling": pooling,
    "sinks": sinks,
    "probes": probes,
    "types": types,
    "ends": ends,
    "over": over,
    "representations": representations,
    "rates": rates,
    "families": families,
    "refused": refused,
    "real-weights": real_weights,
    "metrics": metrics,
    "settings": settings,
    "selectors": selectors,
    "jobs": jobs,
    **{name: partial(as_is, name) for name in AS_IS},
}

if __name__ == "__main__":
    main()
