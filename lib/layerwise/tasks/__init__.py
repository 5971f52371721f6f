"""Downstream tasks: which texts they need, their embeddings, and the score of every layer."""
