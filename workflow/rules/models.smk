# Models that have to be made before they can be loaded. The rest of the workflow sees folders.


def nano_settings(wildcards):
    return as_json(config["nano"][model_of(wildcards)])


def nano_key(wildcards):
    return PLAN.nano_key(model_of(wildcards))


def convert_source(wildcards):
    return as_json(config["models"][model_of(wildcards)]["source"])


def convert_key(wildcards):
    return PLAN.convert_key(model_of(wildcards))


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
        threads: 1
        resources:
            mem_mb=grows(4000),
            runtime=grows(30),
        params:
            key=PLAN.nano_key(NANO),
            settings=as_json(config["nano"][NANO]),
            revisions=config["models"][NANO]["revisions"],
            folder=f"{RESULTS}/nano/{encode(NANO)}",
        message:
            f"Training {NANO}"
        shell:
            "python {SCRIPTS}/train_nano.py --texts {input} --settings {params.settings:q}"
            " --revisions {params.revisions:q} --folder {params.folder}"
            " --key {params.key} --losses {output.losses} --threads {threads} --log {log}"


rule convert_gguf:
    output:
        f"{RESULTS}/converted/{{model}}/{{revision}}/{MARKER}",
    log:
        f"{RESULTS}/logs/convert_gguf/{{model}}/{{revision}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/convert_gguf/{{model}}/{{revision}}.tsv"
    threads: 1
    resources:
        mem_mb=grows(6000),
        runtime=grows(20),
    params:
        key=convert_key,
        source=convert_source,
        revision=revision_of,
        folder=f"{RESULTS}/converted/{{model}}/{{revision}}",
    message:
        "Converting {wildcards.model} from GGUF"
    shell:
        "python {SCRIPTS}/convert_gguf.py --source {params.source:q} --revision {params.revision:q}"
        " --output {params.folder} --key {params.key} --log {log}"
