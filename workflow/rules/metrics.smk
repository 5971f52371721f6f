# From activations to the tidy table of metrics, all layers of a file at once, on CPU.


rule compute_metrics:
    input:
        unpack(inputs("compute_metrics")),
    output:
        **outputs("compute_metrics"),
    log:
        record("logs", "compute_metrics"),
    benchmark:
        record("benchmarks", "compute_metrics")
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(30),
    params:
        command=command("compute_metrics"),
    message:
        "Metrics of {wildcards.model} at {wildcards.revision} on {wildcards.corpus}"
    shell:
        RUN
