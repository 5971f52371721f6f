"""Images and recordings: corpora, tasks and models of them."""
