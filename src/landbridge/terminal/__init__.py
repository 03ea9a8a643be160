"""The terminal: the asyncio shell around the core. Reading order: server, connection, broker, topic, group,
log, commit."""
