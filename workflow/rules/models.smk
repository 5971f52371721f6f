# Models that have to be made before they can be loaded. The rest of the workflow sees folders.


for NANO in CONFIG.nano:

    rule:
        name:
            f"train_{encode(NANO).replace('-', '_').replace('.', '_').replace('%', '_')}"
        input:
            inputs("train_nano", model=NANO),
        output:
            **nano_outputs(NANO),
        log:
            f"{RESULTS}/logs/train_nano/{encode(NANO)}.log",
        benchmark:
            f"{RESULTS}/benchmarks/train_nano/{encode(NANO)}.tsv"
        # Beside the models that are there already, whose passes take longer.
        priority: 10
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            mem_mb=grows(4000),
            runtime=grows(30),
            gpu=int(CONFIG.nano[NANO].device != "cpu"),
        params:
            command=command("train_nano", model=NANO),
        message:
            f"Training {NANO}"
        shell:
            RUN


rule convert_gguf:
    input:
        inputs("convert_gguf"),
    output:
        **outputs("convert_gguf"),
    log:
        record("logs", "convert_gguf"),
    benchmark:
        record("benchmarks", "convert_gguf")
    # Short, and the longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(6000),
        runtime=grows(20),
    params:
        command=command("convert_gguf"),
    message:
        "Converting {wildcards.model} from GGUF"
    shell:
        RUN
