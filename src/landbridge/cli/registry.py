"""``landbridge registry``: a registry, alone in its process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from landbridge.cli import output
from landbridge.cli.loop import run
from landbridge.cli.options import CertificateFile, KeyFile, ListenOn, LogLevel, flag, option, port
from landbridge.node.plan import data_folder

if TYPE_CHECKING:
    from landbridge.node.registry_service import RegistryReady


def registry(
    data: Path | None = option(
        "Where the data is kept.",
        metavar="FOLDER",
        default="$LANDBRIDGE_DATA/registry, else ~/.local/share/landbridge/registry",
    ),
    host: ListenOn = "127.0.0.1",
    port: int = port("Its port; 0 takes a free one.", value=7490),
    context: str = option("The context for the operator's credential.", metavar="NAME", value="registry"),
    master_key_file: Path | None = option(
        "Where the master key is, if not in LANDBRIDGE_MASTER_KEY.",
        metavar="FILE",
        default="master.key in the data folder",
    ),
    store: str | None = option(
        "Where its store is, if on a server: redis://… or postgresql://…; @FILE reads the URL from a file.",
        metavar="URL|@FILE",
        default="$LANDBRIDGE_STORE, else the data folder",
    ),
    tls_cert: CertificateFile = None,
    tls_key: KeyFile = None,
    reset_operator: bool = flag(
        "Make a new credential for the operator; the old one ends.", "--reset-operator"
    ),
    log_level: LogLevel = "info",
) -> None:
    """Start a registry, until Ctrl-C or SIGTERM. The first start makes its keys and the operator's context.

    Examples:
      landbridge registry
      landbridge registry --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    from landbridge.node import registry_service
    from landbridge.node.stores import address_of

    plan = registry_service.RegistryPlan(
        data=(data or data_folder() / "registry").absolute(),
        host=host,
        port=port,
        context=context,
        master_key_file=master_key_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        reset_operator=reset_operator,
        store=address_of(store),
    )
    run(registry_service.serve(plan, _announce))


def _announce(ready: RegistryReady) -> None:
    facts = {
        "registry": ready.url,
        "data": ready.data,
        "context": ready.context or "the credential of its operator is not in a context here",
        "next": "landbridge customer create NAME",
    }
    output.emit(ready, lambda _: output.facts(facts))
