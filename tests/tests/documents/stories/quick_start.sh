# needs: redis-server redis-benchmark ib_write_lat
# README's first commands, and what a report of a fault asks for.

#: README.md
sluice run -- redis-server --port 6400 >/tmp/redis.log 2>&1 &
await "redis" listens 6400
sluice run -- redis-benchmark -p 6400 >/tmp/bench.log 2>&1
grep -q '====== GET ======' /tmp/bench.log || fail "$(cat /tmp/bench.log)"
sluice verbs -- ib_write_lat &
await "ib_write_lat" listens 18515
sluice verbs -- ib_write_lat 127.0.0.1 >/tmp/lat.log
grep -q 't_typical' /tmp/lat.log || fail "$(cat /tmp/lat.log)"
wait %2

#: .github/ISSUE_TEMPLATE/fault.md
sluice --version
sluice doctor
uname -a
