"""The released corpus on disk: schema, writer, readers and validation (`docs/corpus.md`)."""
