"""Views: nlpaug's augmenters, seeded per prompt and view; and perturbed token sequences."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerwise.config.corpora import Action, ViewSettings
from layerwise.corpora import augment as module
from layerwise.corpora.augment import Augmenter, augment
from layerwise.corpora.perturb import randomise_tokens, repeat_tokens
from layerwise.corpora.table import Corpus
from layerwise.errors import LayerwiseError

ACTIONS = get_args(Action)

PROSE = (
    "The albedo is an important concept in climatology, astronomy, and calculating reflectivity "
    "of surfaces in sustainable-rating systems for buildings. The average overall albedo of Earth "
    "is 30 to 35% because of cloud cover, but widely varies locally across the surface because of "
    "different geological and environmental features."
)


def corpus_of(*texts: str) -> Corpus:
    return Corpus("c", [f"p{i}" for i in range(len(texts))], list(texts), [1] * len(texts))


@pytest.fixture(scope="module")
def typos():  # type: ignore[no-untyped-def]
    from layerwise.corpora import typos

    return typos


def test_views_are_texts_all_different_and_none_the_prompt() -> None:
    corpus = corpus_of(PROSE, PROSE[:90])
    for text, views in zip(corpus.texts, augment(corpus, ViewSettings(n=16)), strict=True):
        assert views is not None
        assert len({text, *views}) == 17
        assert all(isinstance(v, str) and not v.startswith("[") for v in views)
        # Views are typing errors, not other texts: most characters and the length stay.
        for view in views:
            assert 0.8 < len(view) / len(text) < 1.6
            kept = Counter(text) & Counter(view)
            assert kept.total() > 0.6 * len(text)


def test_adding_a_view_keeps_the_earlier_ones() -> None:
    corpus = corpus_of(PROSE, PROSE[50:])
    for settings_ in (ViewSettings(n=5), ViewSettings(n=5, actions=ACTIONS)):
        (first, _), more = (
            augment(corpus, ViewSettings(n=2, actions=settings_.actions)),
            augment(corpus, settings_),
        )
        assert first is not None
        assert more[0] is not None
        assert more[0][:2] == first


def test_views_hang_on_prompt_and_seed_alone() -> None:
    texts = [PROSE, PROSE[40:], PROSE[80:]]
    whole = augment(corpus_of(*texts), ViewSettings())
    turned = Corpus("other", ["p2", "p1", "p0"], texts[::-1], [1] * 3)
    assert augment(turned, ViewSettings()) == whole[::-1]
    assert augment(Corpus("c", ["p1"], texts[1:2], [1]), ViewSettings()) == whole[1:2]
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert augment(corpus_of(*texts), ViewSettings()) == whole
    assert augment(corpus_of(*texts), ViewSettings(seed=1)) != whole
    renamed = Corpus("c", ["q0", "q1", "q2"], texts, [1] * 3)
    assert augment(renamed, ViewSettings()) != whole


def test_the_callers_random_numbers_are_left_alone() -> None:
    def draw() -> tuple[float, float]:
        return random.random(), float(np.random.random())  # noqa: NPY002

    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    expected = [draw(), draw()]
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    first = draw()
    augment(corpus_of(PROSE), ViewSettings())
    assert [first, draw()] == expected
    with pytest.raises(ZeroDivisionError), module.untouched_random_state():
        random.seed(1)
        raise ZeroDivisionError
    random.seed(3)
    after = random.random()
    random.seed(3)
    with module.untouched_random_state():
        random.random()
    assert random.random() == after


@pytest.mark.slow
def test_number_of_processes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(*(PROSE[i:] for i in range(40)), "a b", *(PROSE[i:] for i in range(40, 60)))
    settings_ = ViewSettings(n=3, actions=ACTIONS, on_failure="drop")
    alone = augment(corpus, settings_)
    assert [i for i, views in enumerate(alone) if views is None] == [40]
    monkeypatch.setattr(module, "CHARACTERS_PER_PROCESS", 1)
    assert augment(corpus, settings_, processes=2) == alone


def test_small_corpora_start_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ProcessPoolExecutor", None)
    assert len(augment(corpus_of(PROSE), ViewSettings(), processes=8)) == 1


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("cap", [None, 10])
def test_augmenters_do_what_the_librarys_own_do(typos, action: str, cap: int | None) -> None:  # type: ignore[no-untyped-def]
    import nlpaug.augmenter.char as nac
    import nlpaug.augmenter.word as naw

    own = [
        naw.SplitAug(aug_p=0.3, aug_max=cap),
        nac.RandomCharAug(action=action, aug_char_p=0.3, aug_word_p=0.3, aug_char_max=cap,
                          aug_word_max=cap),
        nac.KeyboardAug(aug_char_p=0.3, aug_word_p=0.3, aug_char_max=cap, aug_word_max=cap),
    ]  # fmt: skip
    for seed in range(5):
        results = []
        for steps in (
            typos.sequence(0.3, cap, action),
            [lambda t, a=a: a.augment(t)[0] for a in own],
        ):
            with module.untouched_random_state():
                random.seed(seed)
                np.random.seed(seed)  # noqa: NPY002
                text = PROSE
                for step in steps:
                    text = step(text)
                results.append(text)
        assert results[0] == results[1]


@pytest.mark.parametrize(("cap", "expected"), [(None, 90), (10, 10), (25, 25)])
def test_the_share_of_words_is_p_unless_capped(typos, cap: int | None, expected: int) -> None:  # type: ignore[no-untyped-def]
    text = " ".join(["elephant"] * 300)
    split, characters, keyboard = typos.sequence(0.3, cap, "substitute")
    assert split(text).count(" ") == 299 + expected
    for change in (characters, keyboard):
        changed = [w for w in re.findall(r"\S+", change(text)) if w != "elephant"]
        # A substituted punctuation mark cuts a word in pieces, or stands for itself: 0.3 x 8
        # letters are 3 of each word.
        assert expected * 0.8 <= len(changed) <= expected * 4


def test_characters_changed_within_a_word(typos) -> None:  # type: ignore[no-untyped-def]
    keyboard = typos.sequence(0.5, None, "substitute")[2]
    view = keyboard("abcdefghij " * 20)
    for word in view.split():
        differ = (
            sum(a != b for a, b in zip(word, "abcdefghij", strict=True)) if len(word) == 10 else 5
        )
        assert differ in (0, 5)


def letters(text: str, action: str) -> int:
    (views,) = augment(corpus_of(text), ViewSettings(n=1, actions=(action,)))
    assert views is not None
    return len("".join(views[0].split()))


def test_actions_are_those_asked_for() -> None:
    count = {action: letters(" ".join(["elephant"] * 60), action) for action in ACTIONS}
    assert count["substitute"] == count["swap"] == 8 * 60
    assert count["delete"] < 8 * 60 < count["insert"]


def test_several_actions_are_drawn_per_view() -> None:
    text = " ".join(["elephant"] * 60)
    (views,) = augment(corpus_of(text), ViewSettings(n=16, actions=("insert", "delete")))
    assert views is not None
    longer = [len("".join(v.split())) > 480 for v in views]
    assert 3 < sum(longer) < 13


@pytest.mark.parametrize(
    "text",
    ["a b", "one", "?! ...", "🙂🙂🙂", "the cat sat on a mat", "x\0y", "\0"],
)
def test_prompts_without_distinct_views_are_named_or_dropped(text: str) -> None:
    corpus = corpus_of(PROSE, text)
    with pytest.raises(LayerwiseError, match=r"'p1' of 'c' .* has no 2 distinct views"):
        augment(corpus, ViewSettings())
    views = augment(corpus, ViewSettings(on_failure="drop"))
    assert views[0] is not None
    assert views[1] is None


def test_a_word_of_four_letters_has_two_views() -> None:
    """It is split in two places, and what is left is too short to be changed."""
    (views,) = augment(corpus_of("word"), ViewSettings(n=2))
    assert sorted(views or []) == ["w ord", "wo rd"]
    with pytest.raises(LayerwiseError, match="'p0'"):
        augment(corpus_of("word"), ViewSettings(n=3))


def test_a_view_is_never_blank() -> None:
    """With p = 1 every letter goes where a word was not split into short pieces."""
    settings_ = ViewSettings(n=3, p=1.0, actions=("delete",), on_failure="drop")
    (views,) = augment(corpus_of("reflectivity"), settings_)
    assert views is not None
    assert all(v.strip() for v in views)


def test_spacing_alone_is_no_view() -> None:
    """nlpaug joins "don't" as "don ' t"; that is no augmentation."""
    text = "I don't; he is, so. 'Tis a (x)"
    augmenter = Augmenter(ViewSettings(n=1))
    assert augmenter.views("p", text) is None


@pytest.mark.parametrize(
    "text",
    [
        "مرحبا بالعالم، هذه جملة طويلة للاختبار",
        "Это предложение написано кириллицей",
        "漢字仮名交じり文のながい文章です",
        "Some words 🙂 and 👩‍👩‍👧 emoji between them",
        "Words with\0NUL between some letters",
        "line\u2028separator and\ttabs\nand newlines here",
    ],
)
def test_any_script_gives_views_that_can_be_stored(tmp_path: Path, text: str) -> None:
    (views,) = augment(corpus_of(text), ViewSettings(n=4))
    assert views is not None
    assert len({text, *views}) == 5
    for view in views:
        view.encode()


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_any_text_has_distinct_views_or_none(text: str) -> None:
    views = Augmenter(ViewSettings(n=3, actions=ACTIONS)).views("p", text)
    if views is not None:
        assert len({text, *views}) == 4
        assert all(v.strip() for v in views)


@given(st.text("ab \n", max_size=200), st.integers(1, 30))
def test_pieces_lose_nothing_but_spaces(typos, text: str, size: int) -> None:  # type: ignore[no-untyped-def]
    cut = typos.pieces(text, size)
    assert " ".join(cut).split() == text.split()
    assert cut == [text] if len(text) <= size else len(cut) <= len(text) / size + 1


def test_long_prompts_take_time_in_proportion_to_their_length(typos) -> None:  # type: ignore[no-untyped-def]
    text = " ".join(["elephant"] * 10_000)
    split = typos.sequence(0.3, None, "substitute")[0]
    assert split(text).count(" ") == pytest.approx(9_999 + 3_000, abs=10)


def test_no_views() -> None:
    assert augment(corpus_of("a", "b"), ViewSettings(n=0)) == [[], []]


# Perturbed token sequences

tokens = st.lists(st.integers(0, 999), max_size=40)
probability = st.floats(0, 1)


@given(tokens, probability, probability, st.integers())
def test_repetition(ids: list[int], p: float, q: float, seed: int) -> None:
    low, high = sorted((p, q))
    few, many = repeat_tokens(ids, low, seed), repeat_tokens(ids, high, seed)
    assert len(few) == len(ids)
    changed = {i for i, (a, b) in enumerate(zip(ids, few, strict=True)) if a != b}
    # What the smaller p replaced, the larger replaces by the same token.
    assert all(many[i] == few[i] for i in changed)
    assert len({few[i] for i in changed}) <= 1
    assert set(few) <= set(ids)
    assert repeat_tokens(ids, 0.0, seed) == ids
    assert len(set(repeat_tokens(ids, 1.0, seed))) <= 1


@given(tokens, probability, probability, st.integers(1, 50), st.integers())
def test_randomness(ids: list[int], p: float, q: float, vocab: int, seed: int) -> None:
    low, high = sorted((p, q))
    few, many = (randomise_tokens(ids, x, vocab, seed) for x in (low, high))
    assert len(few) == len(ids)
    assert all(m == f for i, f, m in zip(ids, few, many, strict=True) if f != i)
    assert all(0 <= t < vocab or t == i for i, t in zip(ids, few, strict=True))
    assert randomise_tokens(ids, 0.0, vocab, seed) == ids
    assert all(t < vocab for t in randomise_tokens(ids, 1.0, vocab, seed))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_perturbations_hit_a_share_p(p: float) -> None:
    ids = list(range(10_000))
    repeated = repeat_tokens(ids, p, 0)
    random_ = randomise_tokens(ids, p, range(50_000, 60_000), 0)
    for made in (repeated, random_):
        share = sum(a != b for a, b in zip(ids, made, strict=True)) / len(ids)
        assert share == pytest.approx(p, abs=0.02)
    fresh = [t for t in random_ if t >= 50_000]
    # Uniform draws: 10,000 p of 10,000 ids leave a share exp(-p) of them out.
    assert len(set(fresh)) / 10_000 == pytest.approx(1 - np.exp(-p), abs=0.02)


def test_perturbations_depend_on_the_seed() -> None:
    ids = list(range(100))
    assert repeat_tokens(ids, 0.5, "a") == repeat_tokens(ids, 0.5, "a")
    assert len({tuple(repeat_tokens(ids, 0.5, s)) for s in ("a", "b", 0, 1)}) == 4
    assert len({tuple(randomise_tokens(ids, 0.5, 500, s)) for s in ("a", "b", 0, 1)}) == 4
    # Which token repeats differs, too, not its places alone.
    often = {Counter(repeat_tokens(ids, 0.9, s)).most_common(1)[0][0] for s in range(20)}
    assert len(often) > 10


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability(p: float) -> None:
    with pytest.raises(LayerwiseError, match="accepted is a probability"):
        repeat_tokens([1, 2], p, 0)
    with pytest.raises(LayerwiseError, match="accepted is a probability"):
        randomise_tokens([1, 2], p, 5, 0)


def test_empty_vocabulary() -> None:
    with pytest.raises(LayerwiseError, match="no tokens"):
        randomise_tokens([1], 0.5, [], 0)
