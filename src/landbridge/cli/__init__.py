"""The command line: one file per noun, and the only place that puts the parts of the bus together.

``main`` has the list of commands and turns errors into exit statuses. A command is a thin user of the client;
``up`` alone starts something, in ``assembly``. Modules that take long to import (terminal, uvicorn, rich) are
imported by the functions that need them, so that ``landbridge publish`` in a loop of a shell stays quick.
"""
