# needs: gcc setpriv python3
# What the level "restricted" of Pod Security leaves a container (decision 0048): a user of its own, no capability, no new
# privileges, a filter of system calls, and of the node two folders that are mounted read-only, as a device plugin has
# them mounted. It has lanes by 'sluice run', and none by LD_PRELOAD in its environment alone.
gcc -O2 -o /usr/local/bin/filtered_exec tests/apps/filtered_exec.c
mkdir -p /opt/sluice /run/sluice
cp -r /usr/lib/sluice/. /usr/bin/sluice /opt/sluice/
sluiced --foreground --socket /run/sluice/control.sock --allow-all-users >/tmp/sluiced.log 2>&1 &
await "sluiced" test -S /run/sluice/control.sock
uninstall

container() { # command...
    rm -f /tmp/half
    unshare --mount sh -ec '
        for folder in /opt/sluice /run/sluice; do
            mount --bind $folder $folder
            mount -o remount,bind,ro,nosuid,nodev $folder
        done
        exec setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
            env SLUICE_SOCKET=/run/sluice/control.sock HOME=/tmp \
            filtered_exec errno 101 "$@"' container "$@"
}

chmod 1777 /tmp
touch /tmp/go
for _ in {1..20}; do
    container /opt/sluice/sluice run --stats -- python3 /usr/local/bin/talk.py /tmp/half /tmp/go 2>/tmp/stats
    ! grep -q '2 connections, 2 on a lane' /tmp/stats || break
done
grep -q '2 connections, 2 on a lane' /tmp/stats || fail "$(cat /tmp/stats /tmp/sluiced.log)"
container env SLUICE_LOG=info LD_PRELOAD=/opt/sluice/libsluice_preload.so \
    python3 /usr/local/bin/talk.py /tmp/half /tmp/go 2>/tmp/preloaded
grep -q "seccomp filter(s) that 'sluice run' has not tried" /tmp/preloaded || fail "$(cat /tmp/preloaded)"
