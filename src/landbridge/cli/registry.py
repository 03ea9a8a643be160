"""``landbridge registry``: a registry, alone in its process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landbridge.cli import output
from landbridge.cli.options import Json, data_folder

if TYPE_CHECKING:
    from landbridge.node.registry_service import Ready


def registry(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the data is kept.",
            show_default="$LANDBRIDGE_DATA/registry, else ~/.local/share/landbridge/registry",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other than this machine's own needs TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 takes a free one.")] = 7490,
    context: Annotated[
        str, typer.Option(metavar="NAME", help="The context for the operator's credential.")
    ] = "registry",
    master_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the master key is, if not in LANDBRIDGE_MASTER_KEY.",
            show_default="master.key in the data folder",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key, PEM.")] = None,
    reset_operator: Annotated[
        bool,
        typer.Option("--reset-operator", help="Make a new credential for the operator; the old one ends."),
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="How much is logged, to stderr.")
    ] = "info",
    json: Json = False,
) -> None:
    """Start a registry, until Ctrl-C or SIGTERM. The first start makes its keys and the operator's context.

    \b
    Examples:
      landbridge registry
      landbridge registry --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    from landbridge.node import logs

    logs.configure(log_level)
    from landbridge.cli.loop import run
    from landbridge.node import registry_service

    plan = registry_service.Plan(
        data=(data or data_folder() / "registry").absolute(),
        host=host,
        port=port,
        context=context,
        master_key_file=master_key_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        reset_operator=reset_operator,
    )
    run(registry_service.serve(plan, _announce))


def _announce(ready: Ready) -> None:
    if output.choice.json:
        output.write_json(ready)
        return
    print(f"registry {ready.url}")
    print(f"data     {ready.data}")
    print(f"context  {ready.context or 'the credential of its operator is not in a context here'}")
    print("next     landbridge customer create NAME", flush=True)
