"""A store in PostgreSQL.

Reading order: ``functions.sql`` (the tables, and what happens in the server), ``connection.py`` (which errors
go by), ``store.py`` (the driver).
"""
