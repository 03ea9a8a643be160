#!/bin/sh
# Makes what the compose files need and what nobody else may have: passwords and a key in .env, and in certs/ an
# authority with one certificate for all nodes. Nothing is made anew that is there.
#
#   cd deploy/compose && ./prepare.sh [NAME or ADDRESS by which clients reach the nodes …]
set -eu
umask 077
cd "$(dirname "$0")"

random() { openssl rand -base64 "$1" | tr -d '\n'; }
word() { openssl rand -hex 24; }

if [ ! -e .env ]; then
    {
        # 32 bytes that everything in the registry is sealed under. Keep a copy apart from the data.
        echo "LANDBRIDGE_MASTER_KEY=$(random 32)"
        echo "STORE_PASSWORD=$(word)"
        echo "REPLICATION_PASSWORD=$(word)"
    } > .env.new
    mv .env.new .env
fi

# The file that the servers of Valkey include: an argument could be read by everybody on the machine.
if [ ! -e valkey-password.conf ]; then
    password=$(sed -n 's/^STORE_PASSWORD=//p' .env)
    printf 'requirepass %s\nmasterauth %s\n' "$password" "$password" > valkey-password.conf
    chmod 644 valkey-password.conf  # the servers' user reads it: keep this folder from others
fi

mkdir -p certs
if [ ! -e certs/cert.pem ]; then
    names="DNS:node1,DNS:node2,DNS:node3,DNS:localhost,IP:127.0.0.1"
    for name in "$@"; do
        case $name in
            *[!0-9.]*) names="$names,DNS:$name" ;;
            *) names="$names,IP:$name" ;;
        esac
    done
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=landbridge authority" \
        -keyout certs/authority.key -out certs/authority.pem 2> /dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=landbridge" \
        -keyout certs/key.pem -out certs/request.pem 2> /dev/null
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n' "$names" > certs/names.txt
    openssl x509 -req -in certs/request.pem -CA certs/authority.pem -CAkey certs/authority.key -CAcreateserial -days 825 \
        -extfile certs/names.txt -out certs/cert.pem 2> /dev/null
    rm -f certs/request.pem certs/names.txt certs/authority.srl
    chmod 644 certs/authority.pem certs/cert.pem
    # The container's user, 7420, has to read the key; where we can't give it the file, it has to be readable.
    chown 7420 certs/key.pem 2> /dev/null || chmod 644 certs/key.pem
    chmod 755 certs
fi
echo "ready: .env and certs/ are here. Keep .env and certs/authority.key to yourself."
