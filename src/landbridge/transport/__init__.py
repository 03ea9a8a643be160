"""Bytes between two processes: sockets, keepalive, a pair in memory. Client and terminal use the same."""
