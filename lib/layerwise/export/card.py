"""The README.md of an exported model."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerwise.export.cut import Recipe
    from layerwise.models.load import LoadedModel

TOKENS = {
    "all": "all tokens",
    "drop_first": "all tokens but the first",
    "drop_sinks": "all tokens but those of a huge norm (sinks)",
}
READOUTS = {"residual": "the residual stream", "final_norm": "through the model's final norm"}

HEAD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, feature-extraction, layerwise]
{base_model}---

# Layer {layer} of {model}

{model} at {revision} (weights {weights}), cut after block {layer} of {last}
by layerwise {layerwise}.

| | |
|---|---|
| layer | {layer} of {last} |
| tokens | {tokens} |
| pooling | {pooling} |
| readout | {readout} |
| unit length | {unit} |
"""
LOAD = """
It needs sentence-transformers 6 or newer, and nothing of layerwise (saved with
sentence-transformers {sentence_transformers}, transformers {transformers}).

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("."{trust})
model.encode(["a text"])
```
"""
CODE = """
`layerwise_tokens.py` in this folder drops the tokens, because sentence-transformers has no module
for that. It runs such code only with `trust_remote_code=True`.
"""
STATE = """
With plain transformers the layer is
`AutoModel.from_pretrained('.')(...).hidden_states[{state}]`; the last hidden state is past it,
through the final norm.
"""


def text(
    loaded: LoadedModel, recipe: Recipe, state: int | None, origin: str, hub: str = ""
) -> str:
    """Write the card: origin of the model, the cut, how to load it.

    Parameters
    ----------
    state : int or None
        Number of the layer among transformers' hidden states; None for the last.
    origin : str
        Reason for the layer; left out if empty.
    hub : str
        Name of the whole model on the hub; left out if empty.
    """
    parts = [
        HEAD,
        f"\nWhy this layer: {origin.replace('{', '{{').replace('}', '}}')}.\n" if origin else "",
        LOAD,
        CODE if recipe.needs_code else "",
        STATE if state is not None else "",
    ]
    return "".join(parts).format(
        base_model=f"base_model: {hub}\n" if hub else "",
        model=loaded.name,
        revision=loaded.revision,
        weights=loaded.weights[:12],
        layer=recipe.layer,
        last=loaded.anatomy.n_layers - 1,
        tokens=TOKENS[recipe.tokens],
        pooling=recipe.pooling,
        readout=READOUTS[recipe.representation.readout],
        unit="yes" if recipe.normalize else "no",
        trust=", trust_remote_code=True" if recipe.needs_code else "",
        state=state,
        **{
            name.replace("-", "_"): version(name)
            for name in ("layerwise", "sentence-transformers", "transformers")
        },
    )
