"""Pages of the site that are made by the build: the command line, the changelog, and the notebooks.

MkDocs calls the functions whose names begin with `on_`. Whatever is made here is made at every build, so it is
never older than the code.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from dp_powerflow.cli import app

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = "<!-- commands -->"
"""Stands on reference/cli.md where the commands go."""


def on_files(files: Files, config: Any) -> Files:
    """Add CHANGELOG.md and the notebooks as pages."""
    files.append(File.generated(config, "changelog.md", content=changelog_page()))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the commands on their page, and take off the marks of code blocks that only tests read."""
    if page.file.src_uri == "reference/cli.md":
        markdown = markdown.replace(COMMANDS, cli_page())
    return re.sub(r'^( *```\w+.*?) skip="[^"]*"', r"\1", markdown, flags=re.MULTILINE)


def changelog_page() -> str:
    """CHANGELOG.md with links that are right inside the site; files that are not in it are only named."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    text = re.sub(r"\[([^\]]+)\]\((?!docs/|\w+://)[^)]+\)", r"\1", text)
    return re.sub(r"\[(?:docs/)?([^\]]+)\]\(docs/([^)]+)\)", r"[\1](\2)", text)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its text, its code, and what the code printed and drew."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                image = "".join("".join(data["image/png"]).split())
                parts.append(f'<img alt="What the cell above draws" src="data:image/png;base64,{image}">')
            else:
                parts.append(f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts)


def cli_page() -> str:
    """Every command of the program: what it does, its arguments and options with their defaults."""
    return "\n".join(_lines(typer.main.get_command(app), "dp-powerflow"))


def _lines(command: Any, name: str) -> list[str]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        own = [] if name == "dp-powerflow" else [f"## {name}", "", _prose(command.help), ""]
        return own + [line for key, found in sorted(inner.items()) for line in _lines(found, f"{name} {key}")]
    arguments = [found for found in command.params if found.param_type_name == "argument"]
    options = [found for found in command.params if found.param_type_name == "option"]
    usage = [name, *(_argument(found) for found in arguments), *(["[OPTIONS]"] if options else [])]
    lines = [f"## {name}", "", _prose(command.help), "", "```text", " ".join(usage), "```", ""]
    if arguments:
        rows = [f"| `{found.name}` | {_cell(found.help)} |" for found in arguments]
        lines += ["| argument | what it is |", "|---|---|", *rows, ""]
    if options:
        rows = [f"| {_names(found)} | {_cell(found.help)} | {_default(found)} |" for found in options]
        lines += ["| option | what it does | default |", "|---|---|---|", *rows, ""]
    return lines


def _prose(text: str | None) -> str:
    """Help as Markdown: lines of a paragraph are joined, an example is shown as code."""
    return re.sub(r"(?m)^Examples?: `", "Example: `", (text or "").replace("\f", "").strip())


def _argument(found: Any) -> str:
    shown = found.name.upper() + ("..." if found.nargs == -1 else "")
    return shown if found.required else f"[{shown}]"


def _names(found: Any) -> str:
    value = "" if found.is_flag else f" {found.name.upper()}"
    return ", ".join(f"`{option}{value}`" for option in (*found.opts, *found.secondary_opts))


def _default(found: Any) -> str:
    if found.required:
        return "required"
    if found.is_flag or found.default is None or found.default == () or callable(found.default):
        return ""
    return f"`{found.default}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
