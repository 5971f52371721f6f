"""Metrics and probes of every layer while a model is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from layerwise.analysis import labels_of, measure, prompts_of, score_labels
from layerwise.models.opening import open_model

METRICS = ("prompt_entropy", "curvature", "rankme")


class LayerMetrics(TrainerCallback):  # type: ignore[misc]
    """Log metrics of every layer to whatever the Trainer reports to.

    Values are named ``prompt_entropy/layer_03``, also in ``trainer.state.log_history``. The
    Trainer reports to TensorBoard, Weights & Biases and others by its ``report_to``. In another
    loop, such as Lightning's, log what `values` returns.

    The model is read on its own device between two steps, in evaluation mode, and is left as it
    was: training is the same with and without the callback. Models that are sharded over
    processes (FSDP, DeepSpeed ZeRO-3) cannot be read.

    Measuring 64 texts of 100 words takes as long as one training step of 8 texts of 126 words
    (MiniLM with its masked-language head on a CPU), so every 500 steps it adds 0.2%.

    Parameters
    ----------
    texts
        Some texts, images or recordings, the same at every step; as for `layerwise.analyse`.
    every : int
        Steps between two measurements. The first is before training.
    metrics : sequence of str
    labels : sequence, optional
        A label of each text. Adds ``linear_probe`` and ``neighbours``: the scores of a linear
        probe and of nearest neighbours on held-out texts, as in a workflow's task.
    tokenizer : optional
        By default the Trainer's ``processing_class``.
    tokens : str
        Token selection.
    column : str, optional
        Column of a data set or file that holds the texts; by default ``text``.

    Examples
    --------
    >>> import layerwise as lw
    >>> callback = lw.LayerMetrics(texts, every=500, metrics=["rankme"])
    >>> trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
    """

    def __init__(
        self,
        texts: Any,
        every: int = 500,
        metrics: Sequence[str] = METRICS,
        *,
        labels: Sequence[Any] | None = None,
        tokenizer: Any = None,
        tokens: str = "all",
        column: str | None = None,
    ) -> None:
        self.prompts = prompts_of(texts, column)
        self.labels = None if labels is None else labels_of(self.prompts, labels)
        self.every, self.metrics = every, tuple(metrics)
        self.tokenizer, self.tokens = tokenizer, tokens
        self.reporters: list[TrainerCallback] | None = None

    def values(self, model: Any, tokenizer: Any = None) -> dict[str, float]:
        """Metrics and probes of a model by name, such as ``prompt_entropy/layer_03``."""
        with open_model(model, self.tokenizer or tokenizer) as loaded:
            table, _ = measure(loaded, [self.prompts], metrics=self.metrics, tokens=self.tokens)
            scores = score_labels(loaded, self.labels, self.tokens) if self.labels else []
        rows = [*table[["metric", "layer", "value"]].itertuples(index=False, name=None)]
        for layer, score in enumerate(scores):
            rows.append(("linear_probe", layer, score.main_score))
            rows.append(("neighbours", layer, score.neighbours))
        return {f"{name}/layer_{layer:02d}": value for name, layer, value in rows}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Read the model before its first step."""
        if state.global_step == 0:
            self._log(args, state, control, **parts)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Read the model if it is due."""
        if state.global_step % self.every == 0:
            self._log(args, state, control, **parts)

    def _log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        from accelerate.utils import extract_model_from_parallel

        network = extract_model_from_parallel(parts["model"], keep_torch_compile=False)
        logs = self.values(network, parts.get("processing_class"))
        state.log_history.append({**logs, "step": state.global_step})
        # A callback does not see the Trainer's own reporters; these join their runs.
        if self.reporters is None:
            classes = get_reporting_integration_callbacks(args.report_to)
            self.reporters = [reporter() for reporter in classes]
        for reporter in self.reporters:
            reporter.on_log(args, state, control, logs=dict(logs), **parts)
