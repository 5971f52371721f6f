# Scores of every layer on all tasks that studies read: one job per model and checkpoint. Finished
# tasks are kept in a folder next to the table, so a killed job and an added task embed only what
# is missing. With `scoring.parts`, several jobs share the tasks, and `evaluate` joins their tables.

SCORING_THREADS = REQUESTS.scoring_threads


rule evaluate:
    input:
        tasks=task_files,
        model=model_files,
        parts=score_parts,
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
            "--parts {input.parts:q} --output {output:q}",
        )


rule evaluate_part:
    input:
        tasks=task_files,
        model=model_files,
        stale=rerun_if_stale(
            "evaluate_part", "<results>/scores/{model}/{revision}/parts/{part}.parquet"
        ),
    output:
        replaced("<results>/scores/{model}/{revision}/parts/{part}.parquet"),
    log:
        "<results>/logs/evaluate/{model}/{revision}/parts/{part}.log",
    benchmark:
        "<results>/benchmarks/evaluate/{model}/{revision}/parts/{part}.tsv"
    priority: request("evaluate_priority", "model", "revision", "part")
    conda:
        ENVIRONMENT
    threads: SCORING_THREADS
    resources:
        mem_mb=request("scoring_mb", "model", "revision", "attempt", "part", "threads"),
        runtime=request("evaluate_minutes", "model", "revision", "attempt", "part"),
        disk_mb=request("scratch_mb", "model", "revision", "part"),
        gpu=request("evaluate_gpus", "model", "revision", "part"),
    params:
        key=key("evaluate_part"),
    message:
        "Scoring the layers of {wildcards.model} at {wildcards.revision}, part {wildcards.part}"
    shell:
        script(
            "evaluate_part",
            "--model {wildcards.model:q} --revision {wildcards.revision:q} "
            "--part {wildcards.part} --output {output:q}",
        )
