# needs: ip nsenter ib_write_lat
# Memory that two hosts share.
two_hosts 10.0.0.1 10.0.0.2
on_other mkdir /run/1
mkdir /shared

#: docs/windows.md ADDRESS=10.0.0.1
sluice window create /shared/window --size 64M --hosts 4
sluice verbs --device window:/shared/window -- ib_write_lat &
server=$!
await "ib_write_lat" listens 18515
on_other sluice verbs --device window:/shared/window -- ib_write_lat 10.0.0.1 >/tmp/lat.log
grep -q 't_typical' /tmp/lat.log || fail "$(cat /tmp/lat.log)"
wait $server
sluice window serve /run/window.sock --size 256M --hosts 2 &
server=$!
await "the window" sluice window show /run/window.sock
kill $server
wait $server || true
sluice window serve /run/window.sock --size 64M &
server=$!
await "the window" sluice window show /run/window.sock
kill $server
wait $server || true

#: docs/kernel.md
sluice window serve /run/window.sock --size 64M &
await "the window" sluice window show /run/window.sock
