"""The embedded store: a journal of commits in segment files, and an index of it in SQLite.

Reading order: records (one commit as bytes), disk and segments (the files), recent (what records mean), index
(what is derived from them), forming (from writes to a record), journal (the store), replay (opening it),
tending (what goes on beside the commits), takeover (the data of version 0.1)."""
