"""The released corpus on disk: schema, writer, readers and validation (`docs/reference/corpus.md`)."""
