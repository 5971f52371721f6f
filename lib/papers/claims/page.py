"""The page docs/claims.md: both papers' claims, their theorems, and their other tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from papers.claims import inputs, metrics, of_2024, scores
from papers.claims.claim import Claim, verdict
from papers.claims.scores import lead
from papers.tables import PYTHIA, Release, lens_accuracies
from papers.theory import STATEMENTS

LAYER_BY_LAYER: Sequence[Claim] = (*scores.CLAIMS, *metrics.CLAIMS, *inputs.CLAIMS)
DOES_IT_MATTER: Sequence[Claim] = of_2024.CLAIMS

INTRODUCTION = """# The papers' claims, and their authors' numbers

Each claim of two papers, in our words, with the numbers that the authors released about it (state
of July 2025, and for the second paper of September 2024). `python -m papers claims` writes this
page from the shipped tables.

**How a verdict is made.** Each number of a row either supports the claim (✓) or doesn't (✗), by
the condition in the column *supported if*. *Reproduced*: all of them support it; *mixed*: some do;
*not reproduced*: none does; *cannot be checked*: the release has no numbers about it. Numbers in
brackets are outside the claim, and don't count. We wrote the thresholds, knowing the numbers,
where the paper gives none; change them and count again.

Models are those that the claim or its section names, of which the release has the numbers. Layer 0
is the embedding output: it can be the best layer, and is no intermediate one. Metrics are of
WikiText's training split, but of its test split for BERT-large and BERT-base's InfoNCE. *Strong*
means above what 95% of unrelated curves reach. Scores are in
percentage points on English test sets; where scores are missing, tasks or layers are left out.
Intervals are 95% CI over task clusters, simultaneous over layers where a best layer is meant. An
interval that contains 0 doesn't change a verdict, and the {n_claims} verdicts are not corrected
for their number.

Sections and figures are those of version 1 (February 2025) of the first paper, of which we had the
text. Those of version 2 are named where we know them; we could not check them, or its wording,
against its text.
"""

HEADER = """
| where | claim | supported if | the authors' numbers | verdict | what would decide it |
|---|---|---|---|---|---|
"""

NOT_CHECKED = """
Claims that no number of the release can decide: that smooth trajectories filter noise (§4.2), that
early layers respond more to noise than later ones beyond Figure 6b (§5), that chains of thought
reshape the entropy of middle layers (§1, §7: Figure 5 is along the sequence), and the mechanisms
of the discussion.
"""

FIRST = """
## "Layer by Layer" ([arXiv 2502.02013](https://arxiv.org/abs/2502.02013))
"""

SECOND = """
## "Does Representation Matter?" ([arXiv 2412.09563](https://arxiv.org/abs/2412.09563))

Of this paper we had a summary only, so that claims and sections are the summary's. Metrics are by
the formulas of 2024 (`released_2024`). The paper measures AI-Medical-Chatbot as well, on which the
release has no metrics; `presets/medical.yaml` runs it.
"""

THEORY = """
## Theorems and propositions of "Layer by Layer"

Numbers and names are those of version 1. A test computes each example.

| statement | as printed | verdict | example |
|---|---|---|---|
"""


def page() -> str:
    """The page docs/claims.md."""
    release = Release()
    n_claims = len(LAYER_BY_LAYER) + len(DOES_IT_MATTER)
    parts = [INTRODUCTION.format(n_claims=n_claims)]
    parts += [
        FIRST,
        table(LAYER_BY_LAYER, release),
        NOT_CHECKED,
        SECOND,
        table(DOES_IT_MATTER, release),
    ]
    parts += [THEORY, *theorems(), "\n", other_benchmarks(), not_in_the_paper(release)]
    return "".join(parts)


def table(claims: Sequence[Claim], release: Release) -> str:
    """Claims as a table, below a line that counts the verdicts."""
    lines, verdicts = [], Counter[str]()
    for claim in claims:
        numbers = list(claim.check(release))
        verdicts[verdict(numbers)] += 1
        words = "; ".join(map(str, numbers)) or "none"
        cells = [claim.where, claim.says, claim.supported_if or "–", words]
        cells += [f"**{verdict(numbers)}**", claim.decides]
        lines.append(f"| {' | '.join(cells)} |\n")
    counts = ", ".join(f"{n} {name}" for name, n in verdicts.most_common())
    return f"\n{len(claims)} claims: {counts}.\n{HEADER}" + "".join(lines)


def theorems() -> list[str]:
    """A row of the page for each statement."""
    lines = []
    for statement in STATEMENTS:
        cells = (statement.name, statement.says, statement.verdict)
        lines.append(f"| {' | '.join(cells)} | {statement.example().words} |\n")
    return lines


def other_benchmarks() -> str:
    """The authors' accuracies of MMLU, BLiMP and ToxiGen by state."""
    lines = [
        "## MMLU, BLiMP and ToxiGen by layer\n\n",
        "The release has accuracies of a lens at each state of a model. Those of MMLU and BLiMP "
        "are read from the curves of its figures. The tables ship in `lib/papers/lenses.csv`.\n\n",
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
    return "".join(lines) + (
        "\nGuessing gives 25 on MMLU, so that Pythia-2.8b answers at chance. On ToxiGen 56.8 is "
        "the share of the larger class; the tuned lens ends at state 23.\n\n"
    )


def not_in_the_paper(release: Release) -> str:
    """Findings in the released scores of checkpoints."""
    revisions = [
        str(r) for r in release.scores[release.scores["model"] == PYTHIA]["revision"].unique()
    ]
    steps = sorted((r for r in revisions if r != "main"), key=lambda r: int(r[4:]))
    best = {r: lead(release.score(PYTHIA, r)) for r in [*steps, "main"]}
    early = [r for r in steps if best[r].layer == 0]
    late = [r for r in best if r not in early]
    return (
        "## Not in the papers\n\n"
        f"In {PYTHIA} layer 0 has the best mean score at every released checkpoint up to "
        f"{early[-1]}. From {late[0]} on a late layer has it ({best[late[0]].layer}, later "
        f"{min(best[r].layer for r in late)} to {max(best[r].layer for r in late[1:])}), and its "
        f"lead over the output grows from {min(best[r].gain for r in late):.1f} to "
        f"{best['main'].gain:.1f} points.\n"
    )
