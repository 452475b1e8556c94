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
sluice doctor --window /shared/window >/tmp/doctor
grep -q 'This window works' /tmp/doctor || fail "$(cat /tmp/doctor)"
doctors() {
on_other sluice doctor --window /shared/window --wait 20 >/tmp/doctor &
doctor=$!
sluice doctor --window /shared/window --wait 20 >/tmp/doctor.here || true
wait $doctor && grep -q 'another doctor' /tmp/doctor
}
# One that stands still for three seconds is dead for the other one.
doctors || doctors || doctors || fail "$(cat /tmp/doctor /tmp/doctor.here)"
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
