# A server, four clients that update it for a moment, and the end of both.
#
# Run as a user that may run servers, with PGDATA a cluster that has a database `bench` (see
# ../record.sh) and PGHOST a directory for its socket.
set -e
pg_ctl -w -s -o "-k $PGHOST -h '' -c autovacuum=off" -l "$PGHOST/log" start
pgbench -n -c 4 -j 2 -t 250 bench > /dev/null 2>&1
pg_ctl -w -s stop
