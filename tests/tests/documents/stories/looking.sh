# needs: jq gdb strace ss man python3
# How one looks at what happens.

sluice run -- talk-on >/tmp/on.log 2>&1 &
pid=$!
await "a connection" test -e /tmp/on.half
port=$(ss -Htn state established | awk '{ n = split($3, part, ":"); print part[n]; exit }')

#: docs/troubleshooting.md PROGRAM=talk
sluice doctor
sluice status --wide >/tmp/status
grep -qF "127.0.0.1:$port" /tmp/status || fail "$(cat /tmp/status)"
# On a busy machine all may be said by TCP before there is a lane.
for _ in {1..20}; do
    sluice run --log info -- talk 2>/tmp/log
    ! grep -q 'lane' /tmp/log || break
done
grep -q 'lane' /tmp/log || fail "no lane in the log: $(cat /tmp/log)"

#: docs/json.md
sluice status --json | jq '.daemons[].status.processes[].connections[] | select(.path == "tcp") | .reason'

#: CONTRIBUTING.md PROGRAM=talk PID=$pid PORT=$port
for _ in {1..20}; do
    target/release/sluice run --log info --stats -- talk 2>/tmp/log
    ! grep -q '2 on a lane' /tmp/log || break
done
grep -q '2 on a lane' /tmp/log || fail "$(cat /tmp/log)"
scripts/test --list >/tmp/steps
grep -qx 'documents' /tmp/steps || fail "$(cat /tmp/steps)"
sluice status --wide >/tmp/status
grep -q 'python3' /tmp/status || fail "$(cat /tmp/status)"
ss -tnpi "sport = :$port or dport = :$port" >/tmp/ss
grep -q 'bytes_acked' /tmp/ss || fail "$(cat /tmp/ss)"
gdb -p $pid -batch -ex 'thread apply all backtrace' >/tmp/gdb 2>&1
grep -q 'Thread 1' /tmp/gdb || fail "$(cat /tmp/gdb)"
grep ctxt /proc/$pid/status
strace -f -p $pid >/tmp/strace 2>&1 &
await "strace" grep -q attached /tmp/strace
kill %strace

#: bench/README.md
target/release/sluice bench --list >/tmp/workloads
grep -q redis /tmp/workloads || fail "$(cat /tmp/workloads)"
bench/old-new --list >/tmp/rows
grep -q 'redis GET 1 client' /tmp/rows || fail "$(cat /tmp/rows)"

#: docs/man/README.md
sluice man docs/man
man docs/man/sluice-run.1 >/tmp/page
grep -q -- '--stats' /tmp/page || fail "$(cat /tmp/page)"

touch /tmp/on.go
wait $pid || fail "$(cat /tmp/on.log)"
