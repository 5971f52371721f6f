# Models that the workflow converts to safetensors.


def model_files(wildcards):
    """The files of a model that the workflow makes: converted, or by a recipe."""
    return files_of_model(decode(wildcards.model), decode(wildcards.revision))


def files_of_model(model, revision):
    """The same by the config's names."""
    converted = model_folder(CONFIG, model, revision)
    return [converted] if converted else sources_of_model(model, revision)


def sources_of_model(model, revision):
    """The files of a model that recipes make."""
    return PLAN.made_files(CONFIG.models[model], revision)


rule convert:
    input:
        model=lambda wildcards: sources_of_model(**names(wildcards)),
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
        mem_mb=request("memory_mb", "model", "attempt"),
    params:
        key=key("converted"),
    message:
        "Converting {wildcards.model} to safetensors"
    shell:
        script(
            "convert_model",
            "--model {wildcards.model:q} --revision {wildcards.revision:q} "
            "--output {output:q}",
        )
