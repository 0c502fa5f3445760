#!/bin/sh
# Makes the recordings in this directory, with the `shootdown` command of the path. Needs root,
# tracefs, bash, ls, sort, xz, cc, go, node, PostgreSQL with its tools in the path, and a user
# `postgres`.
set -e
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'umount "$work/huge" 2> /dev/null; rm -rf "$work"' EXIT
cp "$here"/programs/* "$work"
cd "$work"

record() {
    name=$1
    shift
    shootdown record --force --quiet --output "$here/$name.shootdown" -- "$@" > /dev/null
}

awk 'BEGIN { srand(1); for (i = 0; i < 8000000; i++) printf "%d\n", rand() * 1e9 }' > numbers
record sort sort --parallel=2 -S 100M -o /dev/null numbers

head -c 20000000 numbers > part
record xz xz -T2 -1 -k -f part

(cd /usr/bin && record ls bash -c 'ls >/dev/null; :')

cc -O1 -g -pthread -ffile-prefix-map="$work"=. -o culprits culprits.c
record explain/forks ./culprits forks

mkdir huge
mount -t tmpfs -o huge=always none huge
cc -O1 -g -pthread -ffile-prefix-map="$work"=. -o huge/folios folios.c
(cd huge && record folios/tmpfs ./folios pages 2 1000)
umount huge

go build -trimpath -o maps maps.go
record go ./maps

record node node allocate.js

export LC_ALL=C PGDATA="$work/data" PGHOST="$work"
chown -R postgres "$work"
as_postgres="setpriv --reuid=postgres --regid=postgres --init-groups"
$as_postgres initdb > /dev/null
$as_postgres pg_ctl -w -s -o "-k $PGHOST -h ''" -l log start
$as_postgres createdb bench
$as_postgres pgbench -i -s 1 bench > /dev/null 2>&1
$as_postgres pg_ctl -w -s stop
record postgres $as_postgres sh postgres.sh
