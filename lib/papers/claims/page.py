"""The page docs/claims.md and the table docs/claims.csv: claims of both papers, theorems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import pandas as pd

from papers.claims import inputs, metrics, of_2024, scores
from papers.claims.claim import Claim, Number, verdict
from papers.tables import PYTHIA, Release, lens_accuracies
from papers.theory import STATEMENTS

LAYER_BY_LAYER: Sequence[Claim] = (*scores.CLAIMS, *metrics.CLAIMS, *inputs.CLAIMS)
DOES_IT_MATTER: Sequence[Claim] = of_2024.CLAIMS

INTRODUCTION = """# The papers' claims, and their authors' numbers

Reference, written by `python -m papers claims`. Each claim of two papers, in our words, beside the
numbers that the authors released. [claims.csv](claims.csv) has all numbers, the condition under
which a number supports a claim, and what would decide it.

- *Reproduced*: all numbers support the claim (✓); *mixed*: some do; *not reproduced*: none (✗).
- We wrote the thresholds, knowing the numbers, where the paper gives none. Verdicts are not
  corrected for their number.
- Scores are percentage points. Intervals are 95% CI over task clusters, and one that contains 0
  doesn't change a verdict. *Null* is the level that 95% of unrelated curves stay below.
- Sections are those of version 1 of the first paper, and of a summary of the second.
"""

FIRST = """
## "Layer by Layer" ([arXiv 2502.02013](https://arxiv.org/abs/2502.02013))
"""

SECOND = """
## "Does Representation Matter?" ([arXiv 2412.09563](https://arxiv.org/abs/2412.09563))

Metrics by the formulas of 2024.
"""

HEADER = """
| where | claim | the authors' numbers | verdict |
|---|---|---|---|
"""

THEORY = """
## Theorems and propositions of "Layer by Layer"

A test computes each example.

| statement | as printed | verdict | example |
|---|---|---|---|
"""


def page(release: Release) -> str:
    """The page docs/claims.md."""
    parts = [INTRODUCTION, FIRST, table(LAYER_BY_LAYER, release)]
    parts += [SECOND, table(DOES_IT_MATTER, release), THEORY, *theorems(), "\n"]
    return "".join([*parts, other_benchmarks()])


@cache
def checked(claim: Claim, release: Release) -> list[Number]:
    """The authors' numbers about a claim, for both the page and the table."""
    return list(claim.check(release))


def rows(release: Release) -> pd.DataFrame:
    """The table docs/claims.csv: a row for each claim."""
    found = []
    for paper, claims in (("2025", LAYER_BY_LAYER), ("2024", DOES_IT_MATTER)):
        for claim in claims:
            numbers = checked(claim, release)
            row = {"paper": paper, "where": claim.where, "claim": claim.says}
            row |= {"supported_if": claim.supported_if, "verdict": verdict(numbers)}
            found.append(
                {**row, "numbers": "; ".join(map(str, numbers)), "decides": claim.decides}
            )
    return pd.DataFrame(found)


def table(claims: Sequence[Claim], release: Release) -> str:
    """Claims as a table, below a line that counts the verdicts."""
    lines, verdicts = [], Counter[str]()
    for claim in claims:
        numbers = checked(claim, release)
        verdicts[verdict(numbers)] += 1
        place = ", ".join(part for part in (claim.section, claim.figure) if part)
        cells = (place or claim.where, claim.says, in_short(numbers), f"**{verdict(numbers)}**")
        lines.append(f"| {' | '.join(cells)} |\n")
    counts = ", ".join(f"{n} {name}" for name, n in verdicts.most_common())
    return f"\n{len(claims)} claims: {counts}.\n{HEADER}" + "".join(lines)


def in_short(numbers: Sequence[Number]) -> str:
    """A count of the numbers that support a claim, with the first for and against it."""
    counted = [number for number in numbers if number.supports is not None]
    if len(counted) <= 2:
        return "; ".join(map(str, counted)) or "none"
    yes, no = ([n for n in counted if n.supports is side] for side in (True, False))
    shown = (*yes[:1], *no[:1])
    return f"{len(yes)} of {len(counted)} ✓, such as {'; '.join(map(str, shown))}"


def theorems() -> list[str]:
    """A row of the page for each statement."""
    lines = []
    for statement in STATEMENTS:
        cells = (statement.name, statement.says, statement.verdict)
        example = statement.example().words.split(". ")[0]
        lines.append(f"| {' | '.join(cells)} | {example} |\n")
    return lines


def other_benchmarks() -> str:
    """The authors' accuracies of MMLU, BLiMP and ToxiGen by state."""
    lines = [
        "## MMLU, BLiMP and ToxiGen by layer\n\n",
        "Accuracies of a lens at each state (`lib/papers/lenses.csv`).\n\n",
        "| benchmark | model | lens | best state | accuracy | last state |\n",
        "|---|---|---|---|---|---|\n",
    ]
    for benchmark, model, lens in (
        ("MMLU", "Llama3-8B", "logit lens"),
        ("MMLU", "Pythia-2.8b", "logit lens"),
        ("BLiMP", "Llama3-8B", "logit lens"),
        ("ToxiGen", PYTHIA, "logit lens"),
        ("ToxiGen", PYTHIA, "tuned lens"),
    ):
        accuracy = 100 * lens_accuracies(benchmark, model, lens)
        best, last = int(accuracy.argmax()), len(accuracy) - 1
        cells = (benchmark, model, lens, f"{best} of {last}")
        numbers = f"{accuracy[best]:.1f} | {accuracy[-1]:.1f}"
        lines.append(f"| {' | '.join(cells)} | {numbers} |\n")
    return "".join(lines) + ("\nGuessing gives 25 on MMLU and 56.8 on ToxiGen.\n")
