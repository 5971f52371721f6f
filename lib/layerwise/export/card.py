"""The README.md of an exported model."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from layerwise.vocabulary import COMBINES, READOUTS, TOKENS

if TYPE_CHECKING:
    from layerwise.export.cut import Recipe
    from layerwise.models.load import LoadedModel

CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, feature-extraction, layerwise]
{base_model}---

# {title} of {model}

{model} at {revision} (weights {weights}), cut after block {cut} of {last}
by layerwise {layerwise}.

| | |
|---|---|
| {row} |
| tokens | {tokens} |
| pooling | {pooling} |
| readout | {readout} |
| unit length | {unit} |
{origin}
It needs sentence-transformers 6 or newer, and nothing of layerwise (saved with
sentence-transformers {sentence_transformers}, transformers {transformers}).

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("."{trust})
model.encode(["a text"])
```
"""
CODE = """
The code in this folder {does}, because sentence-transformers has no module
for that. It runs such code only with `trust_remote_code=True`.
"""
STATE = """
With plain transformers the layer is
`AutoModel.from_pretrained('.')(...).hidden_states[{state}]`; the last hidden state is past it,
through the final norm.
"""


def text(loaded: LoadedModel, recipe: Recipe, state: int | None, origin: str) -> str:
    """Write the card: origin of the model, the cut, how to load it.

    Parameters
    ----------
    state : int or None
        Number of the layer among transformers' hidden states; None for the last.
    origin : str
        Reason for the layer; left out if empty.
    """
    hub = getattr(loaded.entry.source, "hub", "")
    single, last = len(recipe.layers) == 1, loaded.anatomy.n_layers - 1
    listed = ", ".join(map(str, recipe.layers))
    how = "" if single else f", each at unit length, {COMBINES[recipe.combine]}"
    card = CARD.format(
        base_model=f"base_model: {hub}\n" if hub else "",
        model=loaded.name,
        revision=loaded.revision,
        weights=loaded.weights[:12],
        title=f"Layer {listed}" if single else f"Layers {listed}",
        row=f"layer{'s' * (not single)} | {listed} of {last}{how}",
        cut=recipe.layers[-1],
        last=last,
        tokens=TOKENS[recipe.tokens],
        pooling=recipe.pooling,
        readout=READOUTS[recipe.representation.readout],
        unit="yes" if recipe.normalize else "no",
        origin=f"\nWhy this layer: {origin}.\n" if origin else "",
        trust=", trust_remote_code=True" if recipe.needs_code else "",
        layerwise=version("layerwise"),
        sentence_transformers=version("sentence-transformers"),
        transformers=version("transformers"),
    )
    tasks = {"drops tokens": recipe.tokens != "all", "combines layers": not single}
    does = " and ".join(task for task, needed in tasks.items() if needed)
    card += CODE.format(does=does) if does else ""
    return card + (STATE.format(state=state) if state is not None else "")
