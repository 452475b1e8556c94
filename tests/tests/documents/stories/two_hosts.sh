# needs: ip nsenter iperf3
# Two hosts with certificates of one authority.
two_hosts 10.0.0.1 10.0.0.2
mkdir -p /etc/sluice
cd /root

#: docs/operations.md
sluice ca create sluice-ca
sluice ca host sluice-ca alpha
sluice ca host sluice-ca beta
cp -rp sluice-ca/alpha/. /etc/sluice/
tar -C sluice-ca/beta -cf - . | on_other tar -C /etc/sluice -xf -
run_unit >/tmp/alpha.log 2>&1 &
on_other bash -c "$(declare -f run_unit); run_unit" >/tmp/beta.log 2>&1 &
for port in 4797 4791; do
    await "alpha" sh -c "ss -Hlnut | grep :$port"
    await "beta" on_other sh -c "ss -Hlnut | grep :$port"
done
# It waits for 5 s, and the other host may stand still for longer.
sluice doctor --peer 10.0.0.2 --config /etc/sluice/sluiced.toml || await "a good pair" sluice doctor --peer 10.0.0.2 --config /etc/sluice/sluiced.toml
on_other sluice run -- iperf3 -s -1 >/tmp/server.log &
await "iperf3" on_other sh -c "ss -Hltn | grep 5201"
sluice run -- iperf3 -c 10.0.0.2 -t 1 >/tmp/client.log
await "a session" sluice doctor --peer 10.0.0.2
sluice doctor --peer 10.0.0.2 || await "a good pair" sluice doctor --peer 10.0.0.2
sluice status

#: docs/troubleshooting.md ADDRESS=10.0.0.2
sluice doctor --peer 10.0.0.2 || await "a good pair" sluice doctor --peer 10.0.0.2
sluice doctor --peer 10.0.0.2 --config /etc/sluice/sluiced.toml || await "a good pair" sluice doctor --peer 10.0.0.2 --config /etc/sluice/sluiced.toml
