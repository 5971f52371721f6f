"""The tables of `layerwise.association.claims` as Markdown, for the page that tells them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from layerwise.association.claims import FIRST, LAST
from layerwise.errors import LayerwiseError
from layerwise.statistics import headlines

NONE = "–"
SAID = {1: "earlier is better", -1: "last is better", 0: "cannot be told"}


def page_parts(table: pd.DataFrame, labels: Mapping[str, str]) -> dict[str, str]:
    """The Markdown tables of a page about the claims, by the names of their places.

    Parameters
    ----------
    table : DataFrame
        From `claims`, or read back from a CSV.
    labels : mapping of metric to its name in words
    """
    table = table.astype(object).where(table.notna(), "")
    models = list(dict.fromkeys(m for m in table["model"] if m))

    def part(name: str) -> list[dict[str, Any]]:
        return [
            {str(k): v for k, v in r.items()}
            for r in table[table["part"] == name].to_dict("records")
        ]

    def words(rule: str) -> str:
        first, _, rest = rule.partition(" ")
        return f"{first} {labels.get(rest, rest)}" if rest else rule

    gains = [
        f"| {r['model']} | {r['layer']:.0f} of {r['last_layer']:.0f} | {r['apparent']:.1f} | "
        f"{_number(r['value'])} | {_to(r)} | {r['may_be_best']} | {r['as_good']} | "
        f"{r['k']:.0f} of {r['n']:.0f} | {r['expected']:.1f} (p {r['p']:.2f}) |"
        for r in part("leads")
    ]
    (apart,) = part("leads told apart")
    count = headlines.Count(int(apart["k"]), int(apart["n"]), apart["expected"], apart["p"])
    said = count.text("A lead over the last layer can be told from 0", "models")
    types = [
        f"| {r['model']} | {r['what']} | {r['n_tasks']:.0f} ({r['n_sources']:.0f}) | "
        f"{_minus(r['value'])} | {_to(r)} | {_verdict(r)} |"
        for r in part("types")
    ]
    over = {(r["model"], r["what"]): r for r in part("middle")}
    middles = [
        f"| {m} | {over[m, LAST]['layer']:.0f} | {_signed(over[m, LAST])} | "
        f"{_signed(over[m, FIRST])} |"
        for m in models
    ]
    sizes = [
        f"| {r['model']} | {labels.get(r['what'], r['what'])} | {r['n_tasks']:.0f} | "
        f"{_number(r['dcor'], '.2f')} | {_number(r['dcor_chance'], '.2f')} | "
        f"{', '.join(str(r['dcor_others']).split()) or NONE} | "
        f"{_number(r['spearman'], '+.2f')} | {_number(r['r'], '+.2f')} | "
        f"{_number(r['r_chance'], '.2f')} | {_number(r['value'], '+.2f')} "
        f"({_number(r['low'], '.2f')} to {_number(r['high'], '.2f')}) |"
        for r in part("associations")
    ]
    texts = [
        f"| {r['model']} | {labels.get(r['what'], r['what'])} | {r['n_sources']:.0f} | "
        f"{_number(r['value'], '+.2f')} | {_number(r['strangers'], '+.2f')} | "
        f"{_number(r['p'], '.3f')} | {_number(r['p_within'], '.3f')} |"
        for r in part("own texts")
    ]
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for r in part("rules"):
        by_rule.setdefault(r["what"], []).append(r)
    picked = [
        f"| {words(name)} | {', '.join(str(int(r['layer'])) for r in each)} | "
        f"{'; '.join(map(_signed, each))} | "
        + "; ".join(
            f"{_number(r['regret'])} ({_number(r['regret_low'])} to {_number(r['regret_high'])})"
            for r in each
        )
        + " |"
        for name, each in by_rule.items()
    ]
    best = "".join(
        f"{r['n']:.0f} rules, {r['k']:.0f} of them distinct. Best over all models: "
        f"{words(r['what'])}, mean regret {r['apparent']:.2f}; of the rule chosen "
        f"without the model it is judged on: {r['nested']:.2f}; of the last layer: "
        f"{r['value']:.2f}."
        for r in part("best rule")  # none for one model
    )
    return {
        "gains": _markdown(
            ["model", "best layer", "apparent lead", "on a new task", "95 % interval",
             "may be best", "as good as the last within 1 point", "tasks best served earlier",
             "by chance"], gains, f"{said} (p {apart['p']:.1g}).",
        ),
        "types": _markdown(
            ["model", "type", "tasks (text sources)", "on a new task", "95 % interval", ""], types
        ),
        "middle": _markdown(["model", "middle layer", "over the last", "over layer 0"], middles),
        "associations": _markdown(
            ["model", "metric", "tasks", "dCor", "chance (95 %)", "dCor with others' scores",
             "Spearman", "r given depth", "chance (95 %)",
             "points of score per sd, given depth"], sizes,
        ),
        "own texts": _markdown(
            ["model", "metric", "text sources", "own", "another's", "p (of all metrics)",
             "p, within types"], texts,
        ),
        "rules": _markdown(
            ["rule", f"picks in {', '.join(models)}", "lead over the last layer (95 % interval)",
             "regret (95 % interval)"], picked, best,
        ),
    }  # fmt: skip


def fill(page: str, parts: Mapping[str, str]) -> str:
    """The page with what stands between ``<!-- name -->`` and ``<!-- end -->`` replaced.

    Raises
    ------
    LayerwiseError
        If the page lacks one of the places.
    """
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(page):
            raise LayerwiseError(f"The page has no part <!-- {name} --> … <!-- end --> to fill.")
        page = pattern.sub(lambda m, text=text: m[1] + text + "\n" + m[2], page)  # type: ignore[misc]
    return page


def _markdown(head: list[str], rows: list[str], below: str = "") -> str:
    lines = [f"| {' | '.join(head)} |".replace("|  |", "| |"), "|" + "---|" * len(head), *rows]
    return "\n".join(lines + (["", below] if below else []))


def _number(value: Any, form: str = ".1f") -> str:
    return NONE if value == "" else f"{value:{form}}"


def _minus(value: Any) -> str:
    text = _number(value)
    return "0.0" if text == "-0.0" else text


def _to(row: Mapping[str, Any]) -> str:
    return f"{_minus(row['low'])} to {_minus(row['high'])}"


def _signed(row: Mapping[str, Any]) -> str:
    return f"{_number(row['value'], '+.1f')} ({_to(row)})"


def _verdict(row: Mapping[str, Any]) -> str:
    if row["low"] == row["high"] == 0:
        return "the last is chosen each time"
    return SAID[int(row["low"] > 0) - int(row["high"] < 0)]
