"""The README.md of an exported model."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerwise.export.cut import Recipe

TOKENS = {
    "all": "all tokens",
    "drop_first": "all tokens but the first",
    "drop_sinks": "all tokens but those of a huge norm (sinks)",
}
READOUTS = {
    "output": "as the model hands it out at the last layer, the residual stream below",
    "residual": "the residual stream",
    "final_norm": "through the model's final norm",
}


def text(
    *,
    model: str,
    revision: str,
    weights: str,
    last: int,
    state: int | None,
    recipe: Recipe,
    origin: str,
) -> str:
    """The card: where the model came from, what was cut, how to load it.

    Parameters
    ----------
    last : int
        The whole model's last layer.
    state : int or None
        Which of transformers' hidden states is the layer; None for the last.
    origin : str
        Where the choice of the layer came from; empty if nobody said.
    """
    trust = ", trust_remote_code=True" if recipe.needs_code else ""
    parts = [
        "---\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\n---\n",
        f"# Layer {recipe.layer} of {model}\n",
        f"{model} at {revision} (weights {weights[:12]}), cut after block {recipe.layer} of "
        f"{last} by layerwise {version('layerwise')}.\n",
        "| | |\n|---|---|",
        f"| layer | {recipe.layer} of {last} |",
        f"| tokens | {TOKENS[recipe.tokens]} |",
        f"| pooling | {recipe.pooling} |",
        f"| readout | {READOUTS[recipe.readout]} |",
        f"| unit length | {'yes' if recipe.normalize else 'no'} |\n",
        f"Why this layer: {origin or 'not said'}.\n",
        "It needs sentence-transformers 6 or newer, and nothing of layerwise (saved with "
        f"sentence-transformers {version('sentence-transformers')}, transformers "
        f"{version('transformers')}).\n",
        "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("."{trust})\nmodel.encode(["a text"])\n```\n',
    ]
    if recipe.needs_code:
        parts.append(
            "`layerwise_tokens.py`, some 30 lines beside this file, drops the tokens; "
            "sentence-transformers has no module for that, and runs code beside a model only if "
            "told to (`trust_remote_code=True`).\n"
        )
    if state is not None:
        parts.append(
            "With plain transformers the layer is "
            f"`AutoModel.from_pretrained('.')(...).hidden_states[{state}]`; the last hidden state "
            "is past it, through the final norm.\n"
        )
    return "\n".join(parts)
