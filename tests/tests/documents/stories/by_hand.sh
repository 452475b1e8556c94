# needs: python3
# An installation by hand, and services.
uninstall
# sluiced looks by which address it reaches other hosts.
two_hosts 10.0.0.1 10.0.0.2
ip route add default via 10.0.0.2

#: docs/operations.md
packaging/container/stage target/release /
install -m 755 target/release/sluice-bench /usr/lib/sluice/
install -m 644 packaging/systemd/sluiced.service /etc/systemd/system/
install -d -m 700 /etc/sluice
sluice ca key /etc/sluice/peering.key
printf '[daemon]\npsk_file = "peering.key"\n[discovery]\n' >/etc/sluice/sluiced.toml
echo 'SLUICED_OPTIONS=--config /etc/sluice/sluiced.toml --metrics 9797' >/etc/default/sluiced
sluice up --config /etc/sluice/sluiced.toml --check
run_unit >/tmp/sluiced.log 2>&1 &
await "sluiced" test -S /run/sluice/control.sock
for _ in {1..20}; do
    sluice run --stats -- talk 2>/tmp/stats
    ! grep -q '2 on a lane' /tmp/stats || break
done
grep -q '2 on a lane' /tmp/stats || fail "$(cat /tmp/stats)"
sluice bench --list >/dev/null

mkdir -p /usr/lib/systemd/system
for unit in redis-server worker@; do
    printf '[Service]\nExecStart=/bin/sleep 1\n' >"/usr/lib/systemd/system/$unit.service"
done
sluice enable redis-server worker@.service
sluice status >/tmp/status
grep -q 'service worker@.service' /tmp/status || fail "$(cat /tmp/status)"
sluice disable redis-server
[[ ! -e /etc/systemd/system/redis-server.service.d/zz-sluice.conf ]] || fail "redis-server is not disabled"
