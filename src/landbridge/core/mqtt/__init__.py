"""MQTT without I/O: sessions that outlive their connection, and messages in flight."""
