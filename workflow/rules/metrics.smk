# From activations to tidy tables of metrics, on CPU: one row per layer, per prompt, per position.
# Tables stay until they are replaced, and keep the metrics that they have: one more is computed alone.


rule metrics:
    input:
        activations="<results>/activations/{model}/{revision}/{corpus}.h5",
    output:
        metrics=update("<results>/metrics/{model}/{revision}/{corpus}.parquet"),
        prompts=update("<results>/metrics/{model}/{revision}/{corpus}.prompts.parquet"),
        positions=update(
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
    params:
        key=key("metrics"),
    message:
        "Computing the metrics of {wildcards.model} at {wildcards.revision} on {wildcards.corpus}"
    script:
        "../../scripts/compute_metrics.py"
