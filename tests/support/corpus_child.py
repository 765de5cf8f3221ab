"""A run in a process of its own: `python corpus_child.py TARGET`.

It ends with the hashes, or with exit code 2 and one sentence.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.storage import file_hashes
from dp_powerflow.errors import CorpusError
from support.corpora import write_corpus

LAYOUT = CorpusLayout(days=12, steps=24, nodes=7, days_per_part=3)


def main() -> int:
    target = Path(sys.argv[1])
    if "CORPUS_CHILD_USER" in os.environ:
        os.setuid(int(os.environ["CORPUS_CHILD_USER"]))
    try:
        write_corpus(target, LAYOUT)
    except CorpusError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(file_hashes(target)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
