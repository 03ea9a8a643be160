"""Gateways: one file per foreign protocol. Each is a client of a terminal, like everybody else, so that auth,
order and acks exist once; in one process the link is a pair in memory."""
