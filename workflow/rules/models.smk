# Models that have to be made before they can be loaded. The rest of the workflow sees folders.


for NANO in config["nano"]:

    rule:
        name:
            f"train_{NANO.replace('-', '_')}"
        input:
            f"{RESULTS}/texts/wikipedia.parquet",
        output:
            markers=expand(
                f"{RESULTS}/nano/{encode(NANO)}/{{revision}}/{MARKER}",
                revision=map(encode, config["models"][NANO]["revisions"]),
            ),
            losses=report(
                f"{RESULTS}/nano/{encode(NANO)}/losses.csv",
                caption="../report/losses.rst",
                category="Models",
                labels={"model": NANO, "table": "loss by revision"},
            ),
        log:
            f"{RESULTS}/logs/train_nano/{encode(NANO)}.log",
        benchmark:
            f"{RESULTS}/benchmarks/train_nano/{encode(NANO)}.tsv"
        # Started first, so that the long trainings run beside everything else.
        priority: 10
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            mem_mb=grows(4000),
            runtime=grows(30),
        params:
            script=f"{SCRIPTS}/train_nano.py",
            key=PLAN.nano_key(NANO),
            settings=as_json(config["nano"][NANO]),
            revisions=config["models"][NANO]["revisions"],
            folder=output_grandparent,
        message:
            f"Training {NANO}"
        shell:
            "python {params.script} --texts {input} --settings {params.settings:q}"
            " --revisions {params.revisions:q} --folder {params.folder}"
            " --key {params.key} --losses {output.losses} --threads {threads} --log {log}"


rule convert_gguf:
    output:
        f"{RESULTS}/converted/{{model}}/{{revision}}/{MARKER}",
    log:
        f"{RESULTS}/logs/convert_gguf/{{model}}/{{revision}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/convert_gguf/{{model}}/{{revision}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(6000),
        runtime=grows(20),
    params:
        script=f"{SCRIPTS}/convert_gguf.py",
        key=convert_key,
        source=convert_source,
        revision=revision_of,
        folder=output_folder,
    message:
        "Converting {wildcards.model} from GGUF"
    shell:
        "python {params.script} --source {params.source:q} --revision {params.revision:q}"
        " --output {params.folder} --key {params.key} --log {log}"
