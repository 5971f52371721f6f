"""Which tokens count, said by a part of each text: after a marker, before one, the last ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny
from helpers.refused import refused

import layerwise as lw
from layerwise.activations.embedding import part_of, spans
from layerwise.analysis import embed_labels, labels_of
from layerwise.config.settings import ExtractSettings, ScoringSettings, TextPart
from layerwise.config.tasks import LabelledEntry
from layerwise.errors import Code
from layerwise.models.load import LoadedModel
from layerwise.tasks.labelled import LabelledTask
from layerwise.tasks.task import set_up

QUESTIONS = [
    f"Question: {question} Answer: {answer}"
    for question, answer in zip(tiny.texts(24, seed=1), tiny.texts(24, seed=2), strict=True)
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny.loaded("llama", tmp_path_factory.mktemp("m") / "llama")


def states(loaded: LoadedModel, text: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The model's output for a text, and its tokens' characters, by transformers alone."""
    tokenizer = loaded.texts.tokenizer
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    with torch.inference_mode():
        output = loaded.model(input_ids=encoded["input_ids"]).last_hidden_state[0]
    return output.numpy(), [(int(a), int(b)) for a, b in encoded["offset_mapping"][0]]


@pytest.mark.parametrize(
    "part",
    [
        {"after": "Answer:"},
        {"after": "Question:", "before": "Answer:"},
        {"last": 3},
        {"after": "Question:", "before": "Answer:", "last": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("pooling", ["mean", "last_token"])
def test_the_tokens_of_a_part_are_pooled(
    loaded: LoadedModel, part: dict[str, Any], pooling: str
) -> None:
    vectors = lw.embed(
        loaded.model, QUESTIONS, loaded.texts.tokenizer, part=part, pooling=pooling
    ).values[-1]
    for text, vector in zip(QUESTIONS, vectors, strict=True):
        output, offsets = states(loaded, text)
        start = text.rfind(part["after"]) + len(part["after"]) if "after" in part else 0
        stop = text.find(part["before"], start) if "before" in part else len(text)
        inside = [n for n, (a, b) in enumerate(offsets) if a < stop and b > start and a < b]
        inside = inside[-part.get("last", len(inside)) :]
        assert inside
        expected = output[inside].mean(0) if pooling == "mean" else output[inside[-1]]
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_a_part_begins_after_the_last_marker() -> None:
    """A conversation has several turns."""
    text = "Q: a? A: b. Q: c? A: d. Q: e?"
    part = part_of(text, TextPart(after="A:"))
    assert text[part.start : part.stop] == " d. Q: e?"
    part = part_of(text, TextPart(after="A:", before="Q:"))
    assert text[part.start : part.stop] == " d. "


def test_a_token_that_crosses_the_boundary_counts(loaded: LoadedModel) -> None:
    """The tokenizer has tokens of several letters, and the part begins and ends within them."""
    text = tiny.SENTENCE
    _, offsets = states(loaded, text)
    long = [(a, b) for a, b in offsets if b - a > 2]
    (first, _), (_, last) = long[1], long[-2]
    marker, end = text[: first + 1], text[last - 1 :]
    word = part_of(text, TextPart(after=marker, before=end))
    assert (word.start, word.stop) == (first + 1, last - 1)
    _, (span,) = spans(loaded, [word])
    assert (offsets[span.start][0], offsets[span.stop - 1][1]) == (first, last)


def test_sinks_of_a_part_have_the_ratio_of_the_settings(loaded: LoadedModel) -> None:
    """The ratio of the extraction, to the lower median of the whole text's norms."""
    ratio, text = 1.02, QUESTIONS[0]
    output, offsets = states(loaded, text)
    start = text.rfind("Answer:") + len("Answer:")
    norms = np.linalg.norm(output, axis=1)
    kept = norms <= ratio * np.sort(norms)[(len(norms) - 1) // 2]
    inside = np.array([b > start and a < b for a, b in offsets])
    assert 0 < (kept & inside).sum() < inside.sum()
    task = LabelledTask(LabelledEntry(file="none.csv", kind="classification"))
    setup = set_up(
        loaded,
        ExtractSettings(tokens=("drop_sinks",), sink_ratio=ratio),
        ScoringSettings(poolings=("mean",), part=TextPart(after="Answer:")),
    )
    vectors = np.empty((1, loaded.anatomy.n_layers, 1, loaded.width), dtype=np.float32)
    assert sum(task.read(setup, [text], [""], vectors)) == 1
    expected = output[kept & inside].mean(0)
    np.testing.assert_allclose(vectors[0, -1, 0, : len(expected)], expected, atol=1e-5)


def test_choose_and_tasks_read_the_same_part(loaded: LoadedModel, tmp_path: Path) -> None:
    part = {"after": "Answer:"}
    labels = labels_of(QUESTIONS, [n % 2 for n in range(len(QUESTIONS))])
    scored = embed_labels(loaded, labels, "all", part)[-1]
    expected = lw.embed(loaded.model, QUESTIONS, loaded.texts.tokenizer, part=part).values[-1]
    np.testing.assert_allclose(scored[:, : expected.shape[1]], expected, atol=1e-5)
    whole = lw.embed(loaded.model, QUESTIONS, loaded.texts.tokenizer).values[-1]
    assert not np.allclose(whole, expected, atol=1e-3)
    choice = lw.choose(
        loaded.model, QUESTIONS, [n % 2 for n in range(24)], loaded.texts.tokenizer, part=part
    )
    assert len(choice.table) == 4


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"after": "Reply:"}, "missing"),
        ({"before": "Reply:"}, "missing"),
        ({}, "invalid"),
        ({"last": 0}, "out_of_range"),
        ({"behind": "a"}, "unknown_key"),
    ],
)
def test_parts_that_cannot_be(loaded: LoadedModel, part: dict[str, Any], code: Code) -> None:
    with refused(code):
        lw.embed(loaded.model, QUESTIONS, loaded.texts.tokenizer, part=part)


def test_the_marker_that_a_text_lacks_is_named() -> None:
    for text, lacking in (("A: yes", "Question:"), ("Question: yes", "A:")):
        with refused("missing") as caught:
            part_of(text, TextPart(after="Question:", before="A:"))
        assert f"has no {lacking!r}" in str(caught.value)
