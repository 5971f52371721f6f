"""What parts of blocks and sinks do to a valley: shares of known size, and their figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerwise.section import parse
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures.studies import Tables, draw
from layerwise.statistics.shares import share
from layerwise.statistics.valleys import depths, lowest, places

LAYERS = 9
VALLEY = np.array([3.0, 3.0, 2.0, 0.5, 0.5, 0.5, 0.5, 1.5, 2.5])


def prompts_table(values: np.ndarray, **names: Any) -> pd.DataFrame:
    """A table of per-prompt values, shape (N, L)."""
    layers = values.shape[1]
    rows, columns = np.indices(values.shape)
    first = int(names.pop("first", 0))
    place = {
        "model": "m", "revision": "main", "corpus": "c", "sublayer": "block", "tokens": "all",
        "metric": "prompt_entropy", "protocol": "paper", "alpha": 1.0, "n_tokens": 40, **names,
    }  # fmt: skip
    return pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in rows.ravel()], "layer": columns.ravel() + first,
            "depth": (columns.ravel() + first) / (layers + first - 1), "value": values.ravel(),
        }
    ).assign(**place)  # fmt: skip


def noisy(curve: np.ndarray, n: int = 60, seed: int = 0, size: float = 0.2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return curve + rng.normal(size=(n, 1)) * 0.3 + rng.normal(size=(n, len(curve))) * size


def test_a_valley_lies_below_the_lower_shoulder() -> None:
    assert lowest(VALLEY) == (0, 8, 3)
    assert lowest([1, 5, 2, 3, 0]) == (1, 3, 2)
    values = noisy(VALLEY)
    assert depths(values, places(values)).mean() == pytest.approx(2.0, abs=0.15)


def test_a_flat_curve_has_no_depth_on_average() -> None:
    found = [depths(v, places(v)).mean() for v in (noisy(np.zeros(9), seed=s) for s in range(60))]
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(60)
    chosen = [v.mean(0)[list(lowest(v.mean(0))[1:])] for v in (noisy(np.zeros(9), seed=s)
                                                          for s in range(60))]  # fmt: skip
    assert np.mean([a - b for a, b in chosen]) > 0.02, "what choosing by the same prompts gives"


@settings(deadline=None)
@given(st.floats(0.1, 10), st.floats(-5, 5))
def test_a_share_has_no_unit(scale: float, r: float) -> None:
    rng = np.random.default_rng(1)
    wholes = 4 + rng.normal(size=30)
    one = share(r * wholes + rng.normal(size=30), wholes)
    two = share(scale * (r * wholes + np.random.default_rng(1).normal(size=60)[30:]),
                scale * wholes)  # fmt: skip
    assert (one.value, one.low, one.high) == pytest.approx((two.value, two.low, two.high))
    exact = share(r * wholes, wholes)
    assert (exact.low, exact.high) == pytest.approx((r, r), abs=1e-6)


def test_a_share_of_nothing_has_no_ends() -> None:
    rng = np.random.default_rng(0)
    found = share(rng.normal(size=20), rng.normal(size=20))
    assert (found.low, found.high) == (-np.inf, np.inf)


def test_the_interval_of_a_share_covers() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(1500):
        wholes = rng.lognormal(0.5, 0.6, size=48)
        parts = 0.8 * wholes + rng.normal(size=48) * 0.7
        found = share(parts, wholes)
        hits += found.low <= 0.8 <= found.high
    assert 0.93 <= hits / 1500 <= 0.97


# Figures


def study(**given: Any) -> Study:
    return parse(Study, given)


def test_the_valley_that_is_the_first_token() -> None:
    whole, flat = noisy(VALLEY), noisy(np.full(LAYERS, 3.0), seed=1)
    half = noisy((VALLEY + 3) / 2, seed=2)
    table = pd.concat(
        [prompts_table(whole), prompts_table(flat, tokens="drop_first"),
         prompts_table(half, tokens="drop_sinks"),
         prompts_table(flat, model="n"), prompts_table(flat, model="n", tokens="drop_first"),
         prompts_table(flat, model="n", tokens="drop_sinks")],
        ignore_index=True,
    )  # fmt: skip
    drawn = draw(study(kind="sink_valley"), Tables(prompts=table))
    found = drawn.table.set_index(["model", "tokens"])
    assert found.loc[("m", "all"), "depth"] == pytest.approx(2, abs=0.15)
    assert found.loc[("m", "drop_first"), "gone"] == pytest.approx(1, abs=0.1)
    assert found.loc[("m", "drop_sinks"), "gone"] == pytest.approx(0.5, abs=0.1)
    row = found.loc[("m", "drop_sinks")]
    assert row["gone_low"] < 0.5 < row["gone_high"]
    assert not found.loc["n", "valley"].any()
    assert found.loc["n", "gone"].isna().all()
    assert drawn.title.startswith("Of the valley of prompt entropy, what goes without the first")
    low, high = (100 * found.loc[("m", "drop_first"), f"gone_{end}"] for end in ("low", "high"))
    assert drawn.title.endswith(
        f"% ({low:.0f} to {high:.0f}) in m; no valley of 10 % of the curve's height in n"
    )


def test_the_valley_by_checkpoint() -> None:
    parts = [
        prompts_table(noisy(3 - k * (3 - VALLEY)), revision=f"step{s}", tokens=tokens)
        for s, k in ((0, 0.0), (8, 0.5), (64, 1.0))
        for tokens in ("all", "drop_first")
    ]
    asked = study(kind="sink_valley", revisions="all")
    drawn = draw(asked, Tables(prompts=pd.concat(parts, ignore_index=True)))
    whole = drawn.table[drawn.table["tokens"] == "all"]
    assert list(whole["revision"]) == ["step0", "step8", "step64"]
    assert list(whole["valley"]) == [False, True, True]
    assert whole["depth"].to_numpy() == pytest.approx([0, 1, 2], abs=0.2)
    assert "in m at step64" in drawn.title
    assert "No valley of 10 % of the highest value or more: m at step0." in drawn.caption


def test_one_choice_of_tokens_has_nothing_to_compare() -> None:
    with pytest.raises(LayerwiseError, match="compares all tokens with another choice"):
        draw(study(kind="sink_valley"), Tables(prompts=prompts_table(noisy(VALLEY))))


def test_parts_sum_to_what_the_block_does() -> None:
    rng = np.random.default_rng(0)
    stream = noisy(VALLEY)
    # The mixer's addition makes a third of each change, the MLP's the rest.
    between = stream[:, :-1] + np.diff(stream, axis=1) / 3
    others = {
        p: rng.normal(3, 0.3, size=between.shape)
        for p in ("input_norm", "mixer", "mlp_norm", "mlp")
    }
    table = pd.concat(
        [prompts_table(stream), prompts_table(between, sublayer="mixer_residual", first=1),
         *(prompts_table(v, sublayer=p, first=1) for p, v in others.items())],
        ignore_index=True,
    )  # fmt: skip
    drawn = draw(study(kind="block_parts"), Tables(prompts=table))
    found = drawn.table
    for path in ("stream", "parts"):
        mine = found[(found["path"] == path) & (found["layer"] > 0)]
        change = np.diff(stream.mean(axis=0))
        assert mine.groupby("layer")["value"].sum().to_numpy() == pytest.approx(change)
    (facts,) = drawn.facts["panels"]
    assert drawn.title.startswith("What makes prompt entropy fall: in m what the mixer adds (−")
    fall = facts["fall"]["value"]
    assert facts["stream: what the mixer adds"]["value"] == pytest.approx(-fall / 3)
    assert facts["stream: what the MLP adds"]["value"] == pytest.approx(-2 * fall / 3)
    parts = sum(v["value"] for k, v in facts.items() if k.startswith("parts: "))
    assert parts == pytest.approx(-fall)
    assert fall == pytest.approx(2.5, abs=0.2), "from the left, not from the lower shoulder"
    with pytest.raises(LayerwiseError, match="no parts of"):
        draw(study(kind="block_parts"), Tables(prompts=prompts_table(stream)))
