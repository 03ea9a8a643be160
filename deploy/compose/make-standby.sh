#!/bin/sh
# Copies the primary where there is no copy yet, and follows it.
#
#   PGDATA=… PGPASSWORD=… make-standby.sh HOST [PORT]
set -eu
port=${2:-5432}
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    chmod 700 "$PGDATA"
    # A copy that was not finished is begun anew.
    find "$PGDATA" -mindepth 1 -delete
    pg_basebackup --dbname "host=$1 port=$port user=replicator application_name=standby" --pgdata "$PGDATA" --slot standby \
        --wal-method stream --checkpoint fast --write-recovery-conf
fi
exec postgres -D "$PGDATA" ${POSTGRES_OPTIONS:-}
