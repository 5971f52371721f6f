# From activations to the tidy table of metrics, all layers of a file at once, on CPU.


rule compute_metrics:
    input:
        f"{RESULTS}/activations/{{model}}/{{revision}}/{{corpus}}.h5",
    output:
        table=f"{RESULTS}/metrics/{{model}}/{{revision}}/{{corpus}}.parquet",
        prompts=f"{RESULTS}/metrics/{{model}}/{{revision}}/{{corpus}}.prompts.parquet",
    log:
        f"{RESULTS}/logs/compute_metrics/{{model}}/{{revision}}/{{corpus}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/compute_metrics/{{model}}/{{revision}}/{{corpus}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(30),
    params:
        script=f"{SCRIPTS}/compute_metrics.py",
        key=metrics_key,
        model=model_of,
        revision=revision_of,
        corpus=corpus_of,
        settings=as_json(config["metrics"]),
    message:
        "Metrics of {wildcards.model} at {wildcards.revision} on {wildcards.corpus}"
    shell:
        "python {params.script} --activations {input} --model {params.model:q}"
        " --revision {params.revision:q} --corpus {params.corpus:q}"
        " --settings {params.settings:q} --output {output.table}"
        " --prompts-output {output.prompts} --threads {threads} --log {log}"
