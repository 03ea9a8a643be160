"""One process of a terminal: settings, ports, TLS material, what is embedded."""
