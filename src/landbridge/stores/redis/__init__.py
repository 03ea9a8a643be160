"""A store in Redis or Valkey, on a single server or on a cluster.

Reading order: ``functions.lua`` (what happens in the server, and the keys), ``resp.py`` (its protocol),
``servers.py`` (which server has what, and whether its settings are right), ``store.py`` (the driver).
"""
