# Models that the workflow makes itself: trained on the spot, or converted to
# safetensors.


# One rule for each model, since the number of its checkpoints comes from the config.
for NANO in CONFIG.nano:

    rule:
        name:
            rule_name("train", NANO)
        input:
            texts="<results>/texts/wikipedia.parquet",
            stale=stale(
                "nano", *nano_folders(NANO), within="layerwise.json", model=NANO
            ),
        output:
            [directory(folder) for folder in nano_folders(NANO)],
            losses=report(
                f"<results>/nano/{encode(NANO)}.losses.csv",
                caption="../report/losses.rst",
                category="Models",
                labels={"model": NANO, "table": "loss by checkpoint"},
            ),
        log:
            f"<results>/logs/train_nano/{encode(NANO)}.log",
        benchmark:
            f"<results>/benchmarks/train_nano/{encode(NANO)}.tsv"
        # The passes of its checkpoints wait for it.
        priority: 20
        conda:
            ENVIRONMENT
        # More threads add numbers in another order, which changes the weights.
        threads: 1
        params:
            key=PLAN.keys.nano(NANO),
            model=NANO,
        message:
            f"Training {NANO}"
        shell:
            script("train_nano") + " --model {params.model:q} --texts {input.texts:q}"
            " --losses {output.losses:q} --key {params.key} --threads {threads}"
            " --log {log:q}"


rule convert:
    input:
        stale=stale(
            "converted",
            "<results>/converted/{model}/{revision}",
            within="layerwise.json",
        ),
    output:
        directory("<results>/converted/{model}/{revision}"),
    log:
        "<results>/logs/convert/{model}/{revision}.log",
    # The longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=model_memory,
    params:
        key=key("converted"),
    message:
        "Converting {wildcards.model} to safetensors"
    shell:
        script("convert_model")
        + " --model {wildcards.model:q} --revision {wildcards.revision:q}"
        " --output {output:q} --key {params.key} --threads {threads} --log {log:q}"
