"""The manifest of a release, a fleet or a study, and every page that is made from it.

Three steps, the same for each kind:

- **model**: pydantic sections, strict and frozen. A manifest has `format`, `kind`, sections of figures,
  constants, enumerations and hashes, and its own digest; no sentence.
- **build**: facts → statement, a pure function. `verify` reads the facts back from the files, builds the
  statement again and compares entry by entry (`model.differences`).
- **render**: statement → pages. Every sentence is in a template (`render.Words` renders one part of it), so
  equal figures give equal pages, which `verify` compares byte by byte.

**A further kind** brings these three: (1) sections, as a subclass of `model.Section` with `format`, `kind`,
`guarantee` (`model.Guarantee`) and its own entries, and a manifest that adds `files` and `manifest_sha256`;
`model.seal` and `model.parse` take that class, `model.form_problems` checks canonical form and digest. (2)
Facts and a function that assembles the statement from them. (3) A template in `templates/` that extends
`words.txt`, whose blocks are parts of one item per "- "; `render.Words(template, figures)` renders them, and
`render.rendered(page, words, figures)` fills in a page that may extend `certificate.html` (blocks `title`,
`subject`, `of`, `body`). What a network is promised comes with the mode: `model.NetworkPolicy`.

Importing this package registers the modes.
"""

from dp_powerflow.manifest import true, twin

__all__ = ["true", "twin"]
