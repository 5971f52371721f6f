"""Each of the studies, asked of what cannot have it: one sentence, before any job or at its own.

Those that only the model can refuse, at its job, with the others going on:
`tests/test_along_sequence.py` (prefixes), `tests/test_block_parts.py` (parts),
`tests/test_token_scores.py` (the lens, surprisal), `tests/test_figures.py` (tables without rows).
"""

from __future__ import annotations

from typing import Any

import pytest

from layerwise.config import Config
from layerwise.errors import LayerwiseError

TEXTS: dict[str, Any] = {"source": {"package": "wikipedia"}, "views": {"n": 0}}
CHECKPOINTS = {"source": {"hub": "x/a"}, "revisions": ["s1", "s2"]}
TUNED: dict[str, Any] = {"tasks": ["STS12"]}
BOTH_WAYS: dict[str, Any] = {"models": {"b-2m": {"source": {"hub": "x/b"}, "bidirectional": True}}}

STUDIES: dict[str, list[tuple[dict[str, Any], dict[str, Any], str]]] = {
    "extreme inputs": [
        ({"kind": "metrics_by_depth", "colour": "repetition", "metrics": ["prompt_entropy"]}, {},
         "no dimension 'repetition'"),
        ({"kind": "metrics_by_depth"},
         {"corpora": {"w": {**TEXTS, "views": {"n": 3}, "perturb": {"repetition": 0.5}}}},
         "perturb changes tokens"),
    ],
    "along the sequence": [
        ({"kind": "along_sequence"}, {}, r"prefix_entropy needs extract\.prefixes: true"),
        ({"kind": "along_sequence"}, {**BOTH_WAYS, "extract": {"prefixes": True}},
         "b-2m see later ones"),
    ],
    "a kind's own metrics": [
        ({"kind": "metrics_by_depth"},
         {"corpora": {"w": {**TEXTS, "views": {"n": 2}}},
          "metrics": {"metrics": ["prompt_entropy", "rankme"]}},
         "curvature, infonce unless .* computes prompt_entropy, rankme; name some of these under"),
        ({"kind": "metrics_by_depth", "metrics": ["curvature"]},
         {"metrics": {"metrics": ["prompt_entropy"]}}, "asks for the metric 'curvature'"),
    ],
    "parts of a block": [
        ({"kind": "block_parts"}, {}, r"name them under extract\.sublayers"),
    ],
    "finetuning": [({"kind": "model_difference"}, {}, "needs 2 models or checkpoints")],
    "scaling": [
        ({"kind": "size_scaling"}, {"models": {"a": CHECKPOINTS}}, "tells no number of param"),
    ],
    "training": [({"kind": "training_course"}, TUNED, "two or more checkpoints")],
    "alpha": [
        ({"kind": "alpha_robustness"}, {}, "needs 'tasks'"),
        ({"kind": "alpha_robustness", "alpha": 3}, TUNED, "asks for the alpha 3"),
    ],
    "groups of prompts": [
        ({"kind": "prompt_groups"}, {"extract": {"spectra": False}}, "needs the spectra"),
        ({"kind": "prompt_groups", "metrics": ["prompt_entropy", "curvature"]}, {}, "one metric"),
    ],
    "sinks": [
        ({"kind": "sink_valley"}, {"extract": {"tokens": ["all"]}},
         "compares all tokens with another choice, and this one has all;"),
        ({"kind": "token_choice", "tokens": ["drop_first"]}, TUNED, "this one has drop_first;"),
    ],
    "similarity of layers": [
        ({"kind": "layer_similarity"}, {"corpora": {"w": TEXTS, "v": TEXTS}}, "several values"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_refused_when_the_config_is_read(name: str) -> None:
    for study, change, says in STUDIES[name]:
        given = {
            "models": {"a-1m": {"source": {"hub": "x/a"}}},
            "corpora": {"w": TEXTS},
            "metrics": {"metrics": ["prompt_entropy", "curvature", "effective_rank"]},
            "studies": {"s": study},
            **change,
        }
        with pytest.raises(LayerwiseError, match=says) as refused:
            Config.of(given)
        assert str(refused.value).startswith(("studies.s: ", "corpora.w: ", "token_tasks.t"))
        assert "\n" not in str(refused.value)


def test_models_that_see_later_tokens_are_left_out_beside_others() -> None:
    models = {"a-1m": {"source": {"hub": "x/a"}}, **BOTH_WAYS["models"]}
    along = {"kind": "along_sequence"}
    given = {"models": models, "corpora": {"w": TEXTS}, "extract": {"prefixes": True}}
    Config.of({**given, "studies": {"s": along}})
    with pytest.raises(LayerwiseError, match="take it out of this study's `models`"):
        Config.of({**given, "studies": {"s": {**along, "models": ["a-1m", "b-2m"]}}})


def test_models_of_published_tables_are_not_the_configs() -> None:
    tables = {"theirs": {"metrics": "metrics.csv"}}
    along = {"kind": "metrics_by_depth", "published": "theirs", "models": ["Pythia-14m"]}
    Config.of({"published": tables, "studies": {"s": along}})
