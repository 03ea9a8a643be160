"""Ordered event dispatch: parsing, sequencing, exchange and queues."""
