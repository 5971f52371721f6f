# Scores of every layer on all tasks that studies read: one job per model and checkpoint. Finished
# tasks are kept in a folder next to the table, so a killed job and an added task embed only what
# is missing.

SCORING_THREADS = REQUESTS.scoring_threads


rule evaluate:
    input:
        tasks=task_files,
        model=model_files,
        stale=rerun_if_stale("evaluate", "<results>/scores/{model}/{revision}.parquet"),
    output:
        replaced("<results>/scores/{model}/{revision}.parquet"),
    log:
        "<results>/logs/evaluate/{model}/{revision}.log",
    benchmark:
        "<results>/benchmarks/evaluate/{model}/{revision}.tsv"
    priority: request("evaluate_priority", "model", "revision")
    conda:
        ENVIRONMENT
    # Where tables are joined alone, no model is loaded and no GPU held.
    threads: lambda wildcards: SCORING_THREADS if REQUESTS.due(**names(wildcards)) else 1
    resources:
        mem_mb=request("scoring_mb", "model", "revision", "attempt", "threads"),
        runtime=request("evaluate_minutes", "model", "revision", "attempt"),
        disk_mb=request("scratch_mb", "model", "revision"),
        gpu=request("evaluate_gpus", "model", "revision"),
    params:
        key=key("evaluate"),
    message:
        "Scoring the layers of {wildcards.model} at {wildcards.revision}"
    shell:
        script(
            "evaluate_model",
            "--model {wildcards.model:q} --revision {wildcards.revision:q} "
            "--output {output:q}",
        )
