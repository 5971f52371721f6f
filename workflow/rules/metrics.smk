# From activations to tidy tables of metrics, on CPU: one row per layer, per prompt, per position.
# Tables stay until they are replaced, and keep the metrics that they have: one more is computed alone.


rule metrics:
    input:
        activations=activations_due,
        stale=rerun_if_stale(
            "metrics",
            "<results>/metrics/{model}/{revision}/{corpus}.parquet",
            "<results>/metrics/{model}/{revision}/{corpus}.prompts.parquet",
            "<results>/metrics/{model}/{revision}/{corpus}.positions.parquet",
        ),
    output:
        metrics=replaced("<results>/metrics/{model}/{revision}/{corpus}.parquet"),
        prompts=replaced(
            "<results>/metrics/{model}/{revision}/{corpus}.prompts.parquet"
        ),
        positions=replaced(
            "<results>/metrics/{model}/{revision}/{corpus}.positions.parquet"
        ),
    log:
        "<results>/logs/metrics/{model}/{revision}/{corpus}.log",
    benchmark:
        "<results>/benchmarks/metrics/{model}/{revision}/{corpus}.tsv"
    # Before further extractions, so that few files of activations exist at once where they are not
    # kept.
    priority: 30
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=lambda wildcards, attempt: 4000 * attempt,
        runtime=lambda wildcards, attempt: 60 * attempt,
    params:
        key=key("metrics"),
    message:
        "Computing the metrics of {wildcards.model} at {wildcards.revision} on {wildcards.corpus}"
    shell:
        script(
            "compute_metrics",
            "--model {wildcards.model:q} --revision {wildcards.revision:q} "
            "--corpus {wildcards.corpus:q} --activations {input.activations:q} "
            "--metrics {output.metrics:q} --prompts {output.prompts:q} "
            "--positions {output.positions:q}",
        )
