"""Choose a layer of one model, from labels or from published scores of models of its kind.

With labels, every layer has a score, and the best one, or the cheapest that is not worse, is
compared with the model's output. Without labels, the answer is the rule of layer selection that
loses least in the published models of this kind.
"""

from layerwise.choosing.by_scores import choose_by_scores
from layerwise.choosing.choice import Choice, plot
from layerwise.choosing.inputs import read_folder, read_labels, read_texts, sample_texts, task_of
from layerwise.choosing.recommend import choose
from layerwise.choosing.several_layers import compare_several

__all__ = [
    "Choice",
    "choose",
    "choose_by_scores",
    "compare_several",
    "plot",
    "read_folder",
    "read_labels",
    "read_texts",
    "sample_texts",
    "task_of",
]
