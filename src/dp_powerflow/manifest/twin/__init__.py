"""What a manifest says of a twin. Importing it registers the mode."""

from dp_powerflow.manifest.twin.figures import CHANGES as CHANGES
from dp_powerflow.manifest.twin.figures import changed as changed
from dp_powerflow.manifest.twin.figures import charged_as as charged_as
from dp_powerflow.manifest.twin.figures import version_of as version_of
from dp_powerflow.manifest.twin.policy import TwinPolicy as TwinPolicy
