"""Terminals as one bus: links, routes, sealed shipments."""
