"""Reading and writing files: atomic, with keys, provenance and checksums."""
