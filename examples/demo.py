"""The main promises, shown on real processes in a folder that is thrown away: one terminal, then five, then
what has crossed as a table. The demo checks what it shows, and exits with 1 if a promise was broken.

``landbridge demo`` runs this file.

python examples/demo.py --messages 20000
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from five_terminals import five_terminals
from one_terminal import one_terminal
from stage import DemoStage, arguments, perform
from tables import Tables


async def demo(stage: DemoStage, folder: Path, messages: int) -> None:
    await one_terminal(stage, folder, messages)
    crossing = DemoStage(stage.console)
    stage.facts["crossing"] = crossing.facts
    crossing.broken, crossing.results = stage.broken, stage.results
    async with five_terminals(crossing, folder / "crossing") as (office, sent):
        await Tables(crossing, folder / "crossing", office, sent).run()


def main(*, messages: int = 100_000, as_json: bool = False) -> int:
    """Returns the exit status."""
    return perform(partial(demo, messages=messages), as_json=as_json)


if __name__ == "__main__":
    given = arguments(__doc__)
    raise SystemExit(main(messages=given.messages, as_json=given.json))
