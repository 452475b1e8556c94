# needs: ip nsenter nginx curl
# A gateway, an application's node, and a client that is neither.
two_hosts 10.0.0.1 10.0.0.11
ip address add 203.0.113.7/32 dev lo
ip -6 address add 2001:db8::7/128 dev lo nodad
ip -6 address add fd00::1/64 dev eth0 nodad
on_other ip -6 address add fd00::11/64 dev eth0 nodad
mkdir -p /etc/sluice
sluice ca key /etc/sluice/peering.key
on_other sh -c 'umask 077; cat >/etc/sluice/peering.key' </etc/sluice/peering.key
toml docs/gateway.md 1 >/etc/sluice/sluiced.toml
toml docs/gateway.md 2 | on_other sh -c 'cat >/etc/sluice/sluiced.toml'

#: docs/gateway.md
sluice up --system --config /etc/sluice/sluiced.toml
sluice gateway --socket /run/sluice/control.sock >/tmp/gateway.log 2>&1 &
on_other sluice up --config /etc/sluice/sluiced.toml
on_other sluice run --gateway gw -- nginx
# Each of nginx's sockets is published by itself.
await "an answer" curl --silent --fail --max-time 1 http://203.0.113.7/
await "an answer by IPv6" curl --silent --fail --max-time 1 'http://[2001:db8::7]/'
curl --silent --max-time 60 http://203.0.113.7/ | grep -qi nginx || fail "$(cat /tmp/gateway.log)"
await "nginx's log" on_other grep -q '"GET / HTTP' /var/log/nginx/access.log
