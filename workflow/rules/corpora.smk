# Texts: prompts with ids, and their views. Made once for all models, on CPU.


rule unpack_wikipedia:
    output:
        f"{RESULTS}/texts/wikipedia.parquet",
    log:
        f"{RESULTS}/logs/unpack_wikipedia.log",
    benchmark:
        f"{RESULTS}/benchmarks/unpack_wikipedia.tsv"
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(10),
    params:
        key=PLAN.unpack_key,
    message:
        "Cleaning the Wikipedia slice of its markup"
    shell:
        "python {SCRIPTS}/unpack_wikipedia.py --output {output} --log {log}"


def corpus_input(wildcards):
    source = config["corpora"][corpus_of(wildcards)]["source"]
    if source.get("package") == "wikipedia":
        return rules.unpack_wikipedia.output
    if "file" in source:
        return source["file"]
    if "task" in source:
        return f"{RESULTS}/tasks/{encode(source['task'])}.texts.parquet"
    return []


def corpus_source(wildcards):
    source = dict(config["corpora"][corpus_of(wildcards)]["source"])
    if source.get("package") == "wikipedia" or "task" in source:
        source["path"] = str(corpus_input(wildcards))
    return as_json(source)


def corpus_part(part):
    def of(wildcards):
        return as_json(config["corpora"][corpus_of(wildcards)][part])

    return of


def corpus_key(wildcards):
    return PLAN.corpus_key(corpus_of(wildcards))


def views_key(wildcards):
    return PLAN.views_key(corpus_of(wildcards))


rule make_corpus:
    input:
        corpus_input,
    output:
        f"{RESULTS}/corpora/{{corpus}}.parquet",
    log:
        f"{RESULTS}/logs/make_corpus/{{corpus}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/make_corpus/{{corpus}}.tsv"
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(20),
    params:
        key=corpus_key,
        name=corpus_of,
        source=corpus_source,
        filters=corpus_part("filters"),
        sample=corpus_part("sample"),
    message:
        "Choosing the prompts of {wildcards.corpus}"
    shell:
        "python {SCRIPTS}/make_corpus.py --name {params.name:q} --source {params.source:q}"
        " --filters {params.filters:q} --sample {params.sample:q}"
        " --output {output} --log {log}"


rule make_views:
    input:
        f"{RESULTS}/corpora/{{corpus}}.parquet",
    output:
        f"{RESULTS}/corpora/{{corpus}}.views.parquet",
    log:
        f"{RESULTS}/logs/make_views/{{corpus}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/make_views/{{corpus}}.tsv"
    threads: 2
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        key=views_key,
        settings=corpus_part("views"),
    message:
        "Augmenting the prompts of {wildcards.corpus}"
    shell:
        "python {SCRIPTS}/make_views.py --corpus {input} --settings {params.settings:q}"
        " --output {output} --threads {threads} --log {log}"
