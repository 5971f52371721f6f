# Scores of every layer on all tasks that studies read: one job per model and checkpoint. Finished
# tasks are kept in a folder next to the table, so a killed job and an added task embed only what
# is missing.


rule evaluate:
    input:
        tasks=task_files,
        model=model_files,
    output:
        update("<results>/scores/{model}/{revision}.parquet"),
    log:
        "<results>/logs/evaluate/{model}/{revision}.log",
    benchmark:
        "<results>/benchmarks/evaluate/{model}/{revision}.tsv"
    priority: request("priority", "model")
    conda:
        ENVIRONMENT
    threads: REQUESTS.scoring_threads
    resources:
        mem_mb=request("scoring_mb", "model", "attempt", "threads"),
        runtime=lambda wildcards, attempt: min(240, 120 * attempt),
        gpu=request("gpus", "model"),
    params:
        key=key("evaluate"),
    message:
        "Scoring the layers of {wildcards.model} at {wildcards.revision}"
    script:
        "../../scripts/evaluate_model.py"
