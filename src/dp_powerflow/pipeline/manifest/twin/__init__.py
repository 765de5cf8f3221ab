"""What a manifest says of a twin. Importing it registers the mode."""

from dp_powerflow.pipeline.manifest.twin import policy

__all__ = ["policy"]
