"""Who is who and who may what: keys, tickets, seals, scopes, the directory."""
