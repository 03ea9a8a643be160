"""Writes docs/cli.md from the commands themselves: ``./dev docs``. A test fails when it is behind."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from typer.main import get_command

from landbridge.cli.main import app

PATH = Path(__file__).with_name("cli.md")
INTRO = """# Command line

`landbridge NOUN VERB`. Every command takes `--json` (also for errors, on stderr) and `--help`; those that
connect take `--context NAME`. Spans are written `30s`, `5m`, `7d`; sizes `10MB`, `1GiB`; times as ISO 8601
or `2h ago`. The exit status is 0, 2 for a mistyped command, or the error's own ([errors](errors.md)).

This page is made from the commands (`./dev docs`).
"""


def commands(command: Any, words: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [(words, command)]
    return [found for name in sorted(inner) for found in commands(inner[name], (*words, name))]


def section(words: tuple[str, ...], command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [
        p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"
    ]
    usage = " ".join([*words, *("[OPTIONS]" for _ in options[:1]), *(_argument(p) for p in arguments)])
    text, _, examples = inspect.cleandoc(command.help or "").replace("\b\n", "").partition("Examples:")
    lines = [f"## {' '.join(words)}", "", text.strip(), "", "```text", usage, "```", ""]
    if examples.strip():
        lines += ["```text", inspect.cleandoc(examples).strip(), "```", ""]
    rows = [(_argument(p), p.help) for p in arguments if getattr(p, "help", None)]
    rows += [(", ".join([*p.opts, *p.secondary_opts]), p.help) for p in options]
    if rows:
        lines += ["| | |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(text)} |" for name, text in rows]
        lines.append("")
    return "\n".join(lines)


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name).upper()
    return name if parameter.required else f"[{name}]"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def page() -> str:
    found = commands(get_command(app), ("landbridge",))
    return INTRO + "\n" + "\n".join(section(words, command) for words, command in found)


if __name__ == "__main__":
    PATH.write_text(page())
