#!/bin/sh
# Runs once, when the primary's database is made: lets the standby in, and has commits wait for it from the next start
# on. The image's entry point starts the server again when this has run.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$REPLICATION_PASSWORD" --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
CREATE ROLE replicator LOGIN REPLICATION PASSWORD :'password';
SELECT pg_create_physical_replication_slot('standby');
ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (standby)';
ALTER SYSTEM SET synchronous_commit = 'on';
ALTER SYSTEM SET max_slot_wal_keep_size = '8GB';
SQL
echo "host replication replicator all scram-sha-256" >> "$PGDATA/pg_hba.conf"
