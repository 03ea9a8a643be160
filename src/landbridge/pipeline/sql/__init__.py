"""Topics and their archive as tables of SQL."""
