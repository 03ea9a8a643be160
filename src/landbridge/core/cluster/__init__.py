"""Nodes: several processes that are one terminal, on one store.

``table.py``: which nodes there are, and which of them has which unit of the store. ``placement.py``: which
units a node should take and give up. ``roster.py``: the port to the server that keeps the table.
``tenure.py``: until when a node may serve what it has.

The table is a hint that decides who claims a unit. The truth is the unit's epoch, which the store compares in
every commit (``core/log/store.py``).
"""
