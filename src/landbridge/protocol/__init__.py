"""Our wire: bytes to frames and back, without I/O. ``frames`` is the vocabulary, ``session`` the grammar."""
