"""`tasks` as a mapping: names with what they are, in place of a list and the sections behind it.

.. code-block:: yaml

    tasks:
      STSBenchmark:                                      # mteb's, or the quickstart's
      EmotionClassification: {folder: /data/emotion}     # as in task_folders
      reviews: {file: reviews.csv, kind: classification} # as in own_tasks
      mmlu: {questions: {hub: cais/mmlu, name: all}}     # as in token_tasks
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerwise.config.base import show
from layerwise.errors import LayerwiseError

OWN = {"file", "corpus", "kind"}
OF_TOKENS = {"questions", "pairs"}


def listed(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with `tasks` as a list and each task's own settings in their section.

    Raises
    ------
    LayerwiseError
        If a task is no mapping, of no section, or named in its section as well.
    """
    tasks = given.get("tasks")
    if not isinstance(tasks, Mapping):
        return given
    found: dict[str, Any] = {**given, "tasks": list(tasks)}
    for name, entry in tasks.items():
        if entry is None or entry == {}:
            continue
        if not isinstance(entry, Mapping):
            raise LayerwiseError(
                f"tasks.{name}: {show(entry)} came; accepted is a mapping as in own_tasks or "
                "token_tasks, {folder: …}, or nothing."
            )
        section, value = _section(name, entry)
        there = found.get(section) or {}
        if isinstance(there, Mapping):
            if name in there:
                raise LayerwiseError(
                    f"tasks.{name}: {section} names it as well; say what it is in one place."
                )
            found[section] = {**there, name: value}
    return found


def _section(name: str, entry: Mapping[str, Any]) -> tuple[str, Any]:
    if set(entry) == {"folder"}:
        return "task_folders", entry["folder"]
    if OWN & set(entry):
        return "own_tasks", entry
    if OF_TOKENS & set(entry):
        return "token_tasks", entry
    raise LayerwiseError(
        f"tasks.{name}: {show(entry)} came; one of the keys "
        f"{', '.join([*sorted(OWN), *sorted(OF_TOKENS), 'folder'])} is needed."
    )


from layerwise.config.own_tasks import OwnTask as LabelledTask  # noqa: E402
from layerwise.config.token_tasks import ChoiceTask, HubQuestions  # noqa: E402


class MtebTask:
    folder = None


def entries(config):
    return {t: config.own_tasks.get(t) or config.token_tasks.get(t) or MtebTask() for t in config.tasks}
