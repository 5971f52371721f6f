"""Every kind of study on one page: picture, what it reads, what a study may say.

``python -m layerwise.figures.gallery > docs/gallery.md``; a test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from layerwise.config.kinds import KINDS, ROLES, Kind
from layerwise.config.studies import Study
from layerwise.project import ROOT

DOCS = ROOT / "docs"
# Pictures and pages that do not bear the name of their kind.
PICTURES = {
    "score_by_depth": "score_by_depth.png", "model_overview": "studies/overview_smollm2.png",
    "task_heatmap": "studies/tasks_by_layer.png", "sink_valley": "studies/sinks.png",
    "factorial": "studies/objective_or_mixer.png",
    "paired_by_depth": "studies/token_matching.png", "probes_by_depth": "studies/probes.png",
}  # fmt: skip
DETAILS = {
    "sink_valley": "studies/sinks.md",
    "paired_by_depth": "studies/token_matching.md",
    "factorial": "studies/objective_or_mixer.md",
    "layers_together": "your-tasks.md",
    "probes_by_depth": "your-tasks.md",
}
READS = {
    "metrics": "metrics of corpora", "scores": "scores of tasks", "prompts": "each prompt's own metrics",
    "surprisals": "each model's surprisal at the prompts", "positions": "metrics along the sequence (`extract.prefixes`)", "texts": "the corpus' texts",
    "associations": "their associations", "choices": "the layers that metrics pick",
    "similarities": "CKA and RSA of stored embeddings", "paired": "token tasks with what they are paired with",
    "probes": "probes of own tasks",
}  # fmt: skip
# What a study of the kind cannot do without, beside the kind.
EXAMPLES = {
    "curves": "y: [scores, metrics], metrics: [prompt_entropy], column: [y, model], colour: reading",
    "model_overview": "models: [smollm2-135m]", "task_heatmap": "models: [smollm2-135m]",
    "value_distribution": "models: [smollm2-135m]", "block_parts": "models: [smollm2-135m]",
    "metrics_over_checkpoints": "models: [pythia-nano, mamba2-nano]",
    "checkpoint_heatmap": "models: [pythia-nano, mamba2-nano], tokens: [all]",
    "scores_over_checkpoints": "models: [pythia-nano]", "training_course": "models: [pythia-nano]",
    "model_difference": "models: [base, tuned]", "size_scaling": "models: [small, large], sizes: {small: 70000000, large: 410000000}",
    "factorial": "factors: {objective: {next: [a, b, c, d, e, f], masked: [g, h, i, j, k, l]}, mixer: {attention: [a, b, c, g, h, i], ssm: [d, e, f, j, k, l]}}",
    "claims": "tokens: [all]",
    "association_strength": "measure: dcor, tokens: [all]",
}  # fmt: skip
OPTIONS = {
    "metric_vs_score": ("measure",), "association_strength": ("measure",), "curves": ("y", "sublayers"),
    "size_scaling": ("sizes",), "factorial": ("factors",), "layers_together": ("layers",),
}  # fmt: skip

# What the rest of the config must hold for it.
WANTS = {
    "layers_together": "`scoring: {layers: [one, mean all]}`", "paired_by_depth": "`token_tasks`",
    "probes_by_depth": "`own_tasks` of another kind than pairs",
    "along_sequence": "`extract: {prefixes: true}`", "block_parts": "`extract: {sublayers: [mixer, mlp]}`",
    "factorial": "three models or more a cell", "size_scaling": "a model of each size",
    "model_difference": "two models or checkpoints with the same tokens",
}  # fmt: skip

HEAD = """# Every kind of study

What each kind draws, on the quickstart's models where there is a picture, which tables it reads, and
what a study of it may say. A study is a name and a few words in the config:

```yaml
studies:
  training: {kind: metrics_over_checkpoints, models: [pythia-nano], metrics: [curvature]}
```

Every study takes `models`, `revisions`, `corpora`, `tasks`, `task_types`, `tokens` and `pooling`, to show a
part of what the config has, and those of metrics `metrics`, `protocol`, `alpha` and `normalization`;
[studies.md](studies.md) has the roles, and
[the schema](../workflow/schemas/config.schema.yaml) every key with its default. This page is what
`python -m layerwise.figures.gallery` prints.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([HEAD, *("\n".join(_section(n, k)) for n, k in KINDS.items())])


def _section(name: str, kind: Kind) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{kind.about[0].upper()}{kind.about[1:]}.\n"
    picture = PICTURES.get(name, f"studies/{name}.png")
    if (DOCS / picture).is_file():
        yield f"![{kind.about[0].upper()}{kind.about[1:]}]({picture})\n"
    more = EXAMPLES.get(name)
    yield f"```yaml\nstudies:\n  mine: {{kind: {name}{f', {more}' if more else ''}}}\n```\n"
    yield f"- **Reads** {', '.join(READS.get(table, table) for table in kind.needs) or 'nothing'}."
    if name in WANTS:
        yield f"- **Wants** {WANTS[name]}."
    if kind.metrics:
        yield f"- **Metrics**, where it names none: {', '.join(f'`{m}`' for m in kind.metrics)}."
    elif kind.metrics is None:
        yield "- **Metrics**, where it names none: all there are."
    if kind.checkpoints:
        yield "- **Checkpoints**: all, of models with two or more."
    elif kind.over is None:
        yield "- **Checkpoints**: one of each model."
    else:
        yield "- **Checkpoints**: the last of each model, or those that `revisions` names."
    placed = "; ".join(
        f"{role}: {', '.join(kind.roles[role])}" for role in ROLES if role in kind.roles
    )
    takes = ", ".join(f"`{role}`" for role in kind.takes)
    if name != "power_law":
        yield f"- **Roles**: {placed}{f'. It may set {takes}' if takes else ', which stay'}."
    for option in OPTIONS.get(name, ()):
        yield f"- **`{option}`**: {Study.model_fields[option].description}"
    details = DETAILS.get(name, f"studies/{name}.md")
    if (DOCS / details).is_file():
        yield f"- **More**: [{details}]({details})"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
