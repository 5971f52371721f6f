"""Multiple choice: the last layer answers as the model itself; questions are read and refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.refused import refused
from helpers.scripts import script

from layerwise.config import Config
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.models.load import LoadedModel, load
from layerwise.run.plan import Plan
from layerwise.tasks.evaluate import TaskScores, score_tasks
from layerwise.tasks.task import Vectors, set_up, texts_of
from papers import choice
from papers.choice import ChoiceTask
from papers.questions import FileQuestions, Question, Questions, read_questions

FAMILIES = ("gpt_neox", "llama", "gemma2", "mamba2", "granite", "phi", "gpt2")


def causal(family: str, folder: Path) -> tuple[Any, LoadedModel]:
    """A tiny language model with its unembedding, and the same as layerwise loads it."""
    torch.manual_seed(3)
    config = tiny.FAMILIES[family]()
    if family == "gemma2":
        config.final_logit_softcapping = 2.0
    if family == "granite":
        config.logits_scaling = 3.0
    model: Any = hf.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2) if parameter.ndim > 1 else None
    model.save_pretrained(folder)
    tiny.nano.train_tokenizer(tiny.WORDS, tiny.VOCABULARY).save_pretrained(folder)
    return model.eval(), load("m", tiny.entry(folder), "main", device="cpu")


def questions(n: int, seed: int = 0) -> list[Question]:
    rng = np.random.default_rng(seed)
    return [
        Question("", text, tuple(" ".join(rng.choice(tiny.WORDS, k)) for k in (1, 2, 3, 1)), 1)
        for text in tiny.texts(n, seed)
    ]


@pytest.mark.parametrize("family", tiny.families(FAMILIES, ("llama", "gemma2")))
def test_the_last_layer_answers_as_the_model(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, loaded = causal(family, tmp_path)
    task = ChoiceTask(questions=FileQuestions(file="q.csv"), shots=2)
    asked, examples = questions(4), questions(2, seed=9)
    # Of another subject, so not shown.
    other = Question("geometry", "sides?", ("fox", "dog", "lives", "seven"), 2)
    monkeypatch.setattr(choice, "read_questions", lambda *_: Questions(asked, [other, *examples]))
    extraction = ExtractSettings(batch_tokens=256)
    setup = set_up(loaded, extraction, ScoringSettings())
    right = np.empty((3, 4, 4, 1))
    assert list(task.reader.read(setup, asked, [""] * 4, right)) == [4]
    for place, form in enumerate(choice.FORMS):
        for row, question in enumerate(asked):
            text, after = choice.prompts(question, form, examples)
            before = loaded.texts.tokenizer(text)["input_ids"]
            values = []
            for answer in after:
                ids = loaded.texts.tokenizer(text + answer)["input_ids"]
                with torch.no_grad():
                    logits = model(torch.tensor([ids])).logits[0]
                logs = torch.log_softmax(logits.double(), -1)[:-1]
                each = logs[range(len(ids) - 1), ids[1:]][len(before) - 1 :]
                values.append(float(each.sum()))
            if form == "answer_per_character":
                values = [v / len(c) for v, c in zip(values, question.choices, strict=True)]
            assert right[place, -1, row, 0] == (int(np.argmax(values)) == question.answer)


def test_a_model_that_cannot_be_asked_has_rows_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    entry = tiny.entry(tiny.save("bert", tmp_path / "bert"))
    loaded = load("m", entry, "main", device="cpu")
    task = ChoiceTask(questions=FileQuestions(file=str(tmp_path / "q.jsonl")))
    taken: list[TaskScores] = []
    setup = set_up(loaded, ExtractSettings(), ScoringSettings())
    score_tasks(setup, {"asked": task}, taken.append)
    scores = [one for found in taken[0].scores.values() for one in found]
    assert len(scores) == 12 and all(one.main_score is None for one in scores)
    assert "next token" in str(scores[0].why)


def test_questions_that_are_too_long_are_left_out_of_the_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of questions change nothing; chance is that of the questions that fit."""
    _, loaded = causal("llama", tmp_path)
    asked = [q._replace(choices=q.choices[: 2 + n % 3]) for n, q in enumerate(questions(7))]
    asked[3] = asked[3]._replace(question="fox " * 400)
    monkeypatch.setattr(choice, "read_questions", lambda *_: Questions(asked, []))
    task = ChoiceTask(questions=FileQuestions(file="q.csv"), shots=0)
    loaded.texts.max_length = 200
    setup = set_up(loaded, ExtractSettings(), ScoringSettings())
    found = {}
    for window in (128, 2):
        monkeypatch.setattr(choice, "WINDOW", window)
        right = np.empty((3, 4, 7, 1))
        counts = list(task.reader.read(setup, asked, [""] * 7, right))
        assert counts == ([7] if window == 128 else [2, 2, 2, 1])
        found[window] = right
    np.testing.assert_array_equal(found[2], found[128])
    assert np.isnan(right[..., 0]).all(axis=(0, 1)).tolist() == [n == 3 for n in range(7)]
    (unit,) = task.units(100)
    vectors = Vectors(right[0, -1], {key: row for row, key in enumerate(unit.keys)})
    answers = task.score(unit.selection, vectors, ScoringSettings())
    sizes = [len(q.choices) for n, q in enumerate(asked) if n != 3]
    assert [chance for _, chance in answers] == [1 / size for size in sizes]
    whole = [(True, 0.5), (False, 0.25), (True, 0.25), (True, 0.5)]
    (score,) = task.combine([whole[:1], whole[1:]], ScoringSettings())
    assert (score.main_score, score.n_runs, score.chance) == (0.75, 4, 0.375)
    # Wilson's interval of 3 of 4.
    assert (score.score_low, score.score_high) == pytest.approx((0.300642, 0.954413), abs=1e-5)
    assert [len(unit.keys) for unit in task.units(3)] == [3, 3, 1]


def test_examples_stand_before_the_question_in_their_order() -> None:
    shown = [Question("", "sides?", ("3", "4"), 1), Question("", "sum?", ("5", "6"), 0)]
    asked = Question("", "product?", ("8", "9", "10"), 2)
    text, after = choice.prompts(asked, "answer", shown)
    assert text == (
        "Question: sides?\nAnswer: 4\n\nQuestion: sum?\nAnswer: 5\n\nQuestion: product?\nAnswer:"
    )
    assert after == (" 8", " 9", " 10")
    text, after = choice.prompts(asked, "letter", shown[:1])
    assert text.startswith("The following are multiple choice questions (with answers).\n\nsides")
    assert after == (" A", " B", " C")


def test_letters_stand_as_in_mmlu() -> None:
    shown = Question("algebra", "1 + 1?", ("2", "3"), 0)
    text, after = choice.prompts(Question("algebra", "2 + 2?", ("5", "4"), 1), "letter", [shown])
    assert text == (
        "The following are multiple choice questions (with answers) about algebra.\n\n"
        "1 + 1?\nA. 2\nB. 3\nAnswer: A\n\n2 + 2?\nA. 5\nB. 4\nAnswer:"
    )
    assert after == (" A", " B")


ROWS: list[dict[str, Any]] = [
    {"question": f"Q{k}?", "choices": ["a", "b", "c"], "answer": k % 3, "subject": "some_algebra"}
    for k in range(20)
]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_files_in_the_schema_of_mmlu(suffix: str, tmp_path: Path) -> None:
    path, table = tmp_path / f"q.{suffix}", pd.DataFrame(ROWS)
    if suffix == "parquet":
        table.to_parquet(path)
    elif suffix == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.assign(choices=table["choices"].map(json.dumps)).to_csv(path, index=False)
    source = FileQuestions(file=str(path), examples=str(path))
    asked, examples = read_questions(source, shots=2, sample=7)
    assert len(asked) == 7 and len(examples) == 20 and asked[0].subject == "some algebra"
    assert texts_of(ChoiceTask(questions=source)) == [row["question"] for row in ROWS]
    answers = {row["question"]: row["answer"] for row in ROWS}
    assert all(answers[q.question] == q.answer for q in asked)
    with refused("too_few"):
        read_questions(source, shots=21)


def test_a_corpus_takes_the_questions_of_a_file_beside_its_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has both files as its input."""
    monkeypatch.chdir(tmp_path)
    for name, rows in {"q": ROWS, "examples": ROWS[:2]}.items():
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    questions = {"file": "q.jsonl", "examples": "examples.jsonl"}
    config = {
        "models": {"tiny": {"source": {"hub": "me/tiny"}}},
        "corpora": {"asked": {"source": {"task": "quiz"}, "filters": {"min_tokens": 0}}},
        "tasks": {"quiz": {"task": "papers.choice.ChoiceTask", "questions": questions}},
        "studies": {"metrics": {"kind": "metrics_by_depth"}},
    }
    plan = Plan(Config.of(config))
    make_corpus = script("make_corpus").main
    texts = [Path("q.jsonl"), Path("examples.jsonl")]
    job = SimpleNamespace(plan=plan, config=plan.config, names={"corpus": "asked"}, key="k")
    make_corpus(SimpleNamespace(**vars(job), files=lambda _: texts, output=["asked.parquet"]))
    assert {*pd.read_parquet("asked.parquet")["text"]} == {row["question"] for row in ROWS}


def test_a_sample_has_equal_shares_of_all_subjects(tmp_path: Path) -> None:
    sizes = {"a": 40, "b": 9, "c": 2}
    rows = [{**ROWS[0], "subject": name} for name, n in sizes.items() for _ in range(n)]
    rows = [{**row, "question": f"Q{k}?"} for k, row in enumerate(rows)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = FileQuestions(file=str(tmp_path / "q.jsonl"))
    drawn = [read_questions(source, sample=n).asked for n in (12, 20)]
    counts = [Counter(question.subject for question in asked) for asked in drawn]
    assert counts == [{"a": 5, "b": 5, "c": 2}, {"a": 9, "b": 9, "c": 2}]
    assert set(drawn[0]) < set(drawn[1])


LABELLED = {"text": ["yes", "no"], "label": ["A", "B"]}


@pytest.mark.parametrize(
    ("choices", "answer"),
    [
        (LABELLED, "B"),
        (LABELLED, 1),
        (json.dumps(LABELLED), "B"),
        ([{"text": "yes", "label": "A"}, {"label": "B", "text": "no"}], "B"),
        ({"A": "yes", "B": "no"}, "B"),
        (LABELLED | {"label": ["1", "2"]}, "2"),
        (LABELLED | {"label": ["1", "2"]}, 2),
    ],
)
def test_answers_in_a_mapping_are_its_texts(choices: Any, answer: Any, tmp_path: Path) -> None:
    row = {"question": "Is 3 even?", "choices": choices, "answer": answer}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    source = FileQuestions(file=str(tmp_path / "q.jsonl"))
    (asked,) = read_questions(source).asked
    assert asked.choices == ("yes", "no") and asked.answer == 1


@pytest.mark.parametrize(
    "change",
    [
        {"answer": 3},
        {"choices": ["a"]},
        {"question": " "},
        {"answer": 1.5},
        {"choices": LABELLED | {"label": ["1", "2"]}, "answer": 0},
        {"choices": LABELLED | {"label": ["A", "A"]}, "answer": "A"},
        {"choices": [{"text": "yes"}, {"text": "no"}], "answer": 0},
    ],
)
def test_rows_that_are_not_questions_are_named(change: dict[str, Any], tmp_path: Path) -> None:
    rows = [ROWS[0], {**ROWS[1], **change}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with refused("unreadable"):
        read_questions(FileQuestions(file=str(tmp_path / "q.jsonl")))
