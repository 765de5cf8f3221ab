"""`python -m support.fuzz`: the campaign, or one input of it again."""

import sys

from support.fuzz.campaign import main

if __name__ == "__main__":
    sys.exit(main())
