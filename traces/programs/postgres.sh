# Starts a server, runs four clients that update its database for a moment, and stops the server.
#
# Run this as a user that may start servers. PGDATA must be a cluster with a database `bench` (see
# ../record.sh), and PGHOST a directory for the server's socket.
set -e
pg_ctl -w -s -o "-k $PGHOST -h '' -c autovacuum=off" -l "$PGHOST/log" start
pgbench -n -c 4 -j 2 -t 250 bench > /dev/null 2>&1
pg_ctl -w -s stop
