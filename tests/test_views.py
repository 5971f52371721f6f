"""Views of texts: nlpaug's augmenters, seeded per prompt and view."""

import random
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from helpers.refused import refused
from hypothesis import given
from hypothesis import strategies as st

from layerwise.config.corpora import Action, ViewSettings
from layerwise.corpora import views as module
from layerwise.corpora.views import augment, views_of, with_other_units

ACTIONS = get_args(Action)
PROSE = (
    "The albedo is an important concept in climatology, astronomy, and calculating reflectivity "
    "of surfaces in sustainable-rating systems for buildings. The average overall albedo of Earth "
    "is 30 to 35% because of cloud cover, but widely varies locally across the surface because of "
    "different geological and environmental features."
)


def prompts(*texts: str) -> pd.DataFrame:
    return pd.DataFrame({"prompt_id": [f"p{i}" for i in range(len(texts))], "text": texts})


def views(text: str, prompt_id: str = "p", **given: object) -> list[str] | None:
    return views_of(ViewSettings(**given), prompt_id, text)  # type: ignore[arg-type]


def test_views_depend_on_prompt_seed_and_number_alone() -> None:
    texts = [PROSE, PROSE[40:], PROSE[80:]]
    whole = augment(prompts(*texts), ViewSettings(n=2))
    turned = augment(prompts(*texts)[::-1], ViewSettings(n=2))
    pd.testing.assert_frame_equal(
        whole, turned.sort_values(["prompt_id", "view"], ignore_index=True)
    )
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    more = augment(prompts(*texts), ViewSettings(n=5, actions=("substitute",)))
    pd.testing.assert_frame_equal(whole, more[more["view"] <= 2].reset_index(drop=True))
    assert views(PROSE) != views(PROSE, "q")


def test_the_callers_random_numbers_are_left_alone() -> None:
    def draw() -> tuple[float, float]:
        return random.random(), float(np.random.random())  # noqa: NPY002

    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    expected = [draw(), draw()]
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    first = draw()
    views(PROSE)
    assert [first, draw()] == expected


@pytest.mark.slow
def test_number_of_processes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = prompts(*(PROSE[i:] for i in range(40)), "a b", *(PROSE[i:] for i in range(40, 60)))
    given_ = ViewSettings(n=3, actions=ACTIONS, on_failure="drop")
    alone = augment(table, given_)
    assert "p40" not in set(alone["prompt_id"])
    monkeypatch.setattr(module, "CHARACTERS_PER_PROCESS", 1)
    pd.testing.assert_frame_equal(augment(table, given_, processes=2), alone)


@pytest.mark.parametrize(
    "text", ["a b", "one", "?! ...", "🙂🙂🙂", "x\0y", "I don't; he is, so. 'Tis a (x)"]
)
def test_prompts_without_distinct_views_are_named_or_dropped(text: str) -> None:
    """Spacing alone is no view: nlpaug joins "don't" as "don ' t"."""
    table = prompts(PROSE, text)
    with refused("too_few"):
        augment(table, ViewSettings())
    kept = augment(table, ViewSettings(on_failure="drop"))
    assert set(kept["prompt_id"]) == {"p0"}


def test_a_word_of_four_letters_has_two_views() -> None:
    """It is split in two places, and what is left is too short to be changed."""
    assert sorted(views("word", n=2) or []) == ["w ord", "wo rd"]
    assert views("word", n=3) is None


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_any_text_has_distinct_views_that_can_be_stored_or_none(text: str) -> None:
    made = views(text, n=3, actions=ACTIONS)
    if made is not None:
        assert len({text, *made}) == 4
        assert all(view.strip() and view.encode() for view in made)


def test_no_views() -> None:
    assert augment(prompts("a", "b"), ViewSettings(n=0)).empty


def test_units_of_a_protein_change_places_and_nothing_else_does() -> None:
    protein = "Q V Q L V Q S G A E V K K P G A S V K V"
    settings = ViewSettings(n=4, units="[A-Z]", p=0.25)
    views = views_of(settings, "a", protein)
    assert views is not None
    assert len({protein, *views}) == 5
    for view in views:
        assert view[1::2] == protein[1::2]
        assert set(view) <= set(protein)
        changed = sum(a != b for a, b in zip(view, protein, strict=True))
        assert 1 <= changed <= 5  # a quarter of 20 residues; one may be drawn in its own place
    assert views_of(settings.model_copy(update={"n": 2}), "a", protein) == views[:2]
    assert views_of(settings, "b", protein) != views
    # A small share is one unit, which may be drawn in its own place.
    found = {with_other_units("A B", "[A-Z]", 0.01, seed) for seed in range(9)}
    assert found == {"A B", "A A", "B B"}
