# One forward pass per prompt and view; every layer of one model at one checkpoint in one file.


rule extract_activations:
    input:
        model_folder,
        corpus=f"{RESULTS}/corpora/{{corpus}}.parquet",
        views=f"{RESULTS}/corpora/{{corpus}}.views.parquet",
    output:
        f"{RESULTS}/activations/{{model}}/{{revision}}/{{corpus}}.h5",
    log:
        f"{RESULTS}/logs/extract_activations/{{model}}/{{revision}}/{{corpus}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/extract_activations/{{model}}/{{revision}}/{{corpus}}.tsv"
    # Long jobs first, so that the short ones fill the gaps.
    priority: 5
    conda:
        ENVIRONMENT
    threads: config["extract"]["threads"]
    resources:
        mem_mb=grows(8000),
        runtime=grows(120),
        gpu=int(ON_GPU),
    params:
        script=f"{SCRIPTS}/extract_activations.py",
        machine=MACHINE,
        key=extract_key,
        model=model_of,
        spec=model_spec,
        revision=revision_of,
        settings=as_json(PLAN.extract_settings()),
    message:
        "Extracting {wildcards.model} at {wildcards.revision} on {wildcards.corpus}"
    shell:
        "python {params.script} --model {params.model:q} --spec {params.spec:q}"
        " --revision {params.revision:q} --corpus {input.corpus} --views {input.views}"
        " --settings {params.settings:q} --machine {params.machine:q} --key {params.key}"
        " --output {output} --threads {threads} --log {log}"


rule compare_weights:
    input:
        PLAN.sweep_activations(),
    output:
        report(
            f"{RESULTS}/report/weights.csv",
            caption="../report/weights.rst",
            category="Models",
            labels={"table": "weights of each checkpoint"},
        ),
    log:
        f"{RESULTS}/logs/compare_weights.log",
    benchmark:
        f"{RESULTS}/benchmarks/compare_weights.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(1000),
        runtime=grows(10),
    params:
        script=f"{SCRIPTS}/compare_weights.py",
        key=PLAN.weights_key(),
        files=table_arguments("weights", {"files": PLAN.sweep_activations()}),
    message:
        "Comparing the weights of checkpoints"
    shell:
        "python {params.script} {params.files:q} --output {output} --log {log}"
