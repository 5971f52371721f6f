"""Which layer to use of one model: from its own texts, without a config or a workflow."""
