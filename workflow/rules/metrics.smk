# From activations to tidy tables of metrics, all layers of a file at once, on CPU.


rule compute_metrics:
    input:
        bundle_inputs("compute_metrics"),
    output:
        record("jobs", "compute_metrics"),
    log:
        record("logs", "compute_metrics"),
    benchmark:
        record("benchmarks", "compute_metrics")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        command=bundle_command("compute_metrics"),
    message:
        "Metrics of {wildcards.model} from {wildcards.revision} on"
    shell:
        RUN
