//! Users of `sluice_rdma` in the kernel: `kernel/rdma/users_test.c` beside a program, and NVMe over Fabrics between two
//! devices of a guest, as a user of others' that registers memory for its peers by requests.

use libtest_mimic::Trial;
use sluice_tests::job::find_program;
use sluice_tests::suite::{Verdict, skip, trial};

use crate::rdma::verbs_beside;

/// Of the kernel.
const SUITE: &str = "bookworm-backports";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("rdma_users_in_the_kernel_6_12", || {
            let says = ["beside=ok", "nvme=ok", "nvme_removed=ok"];
            verbs_beside(&NVME_MODULES, SUITE, SCRIPT, &says)
        }),
        trial("rdma_nfs_6_12", || {
            verbs_beside(&NFS_MODULES, SUITE, NFS, &["nfs=ok", "nfs_removed=ok"])
        }),
        trial("rdma_iser_6_12", iser),
    ]
}

/// What the guest has besides: host and target, and a disk in memory.
const NVME_MODULES: [&str; 3] = ["nvme_rdma", "nvmet_rdma", "brd"];

/// Both addresses are this host's, so its own table would keep what is for the other one from leaving.
const SCRIPT: &str = r#"
both
# Beside a program, on whose account the device's lock is held at any time; all guests have it alone.
$VERBS load sluice0 sluice1 >/run/load &
until grep -q loading /run/load; do sleep 0.1; done
insmod $TEST
rmmod sluice_rdma_test
kill $!
wait $! || :
echo beside=ok
ip link set lo up
net_of() { basename /sys/class/infiniband/sluice$(($1 - 1))/device/net/*; }
for number in 1 2; do
    ip addr add 10.9.0.$number/24 dev $(net_of $number)
    ip link set $(net_of $number) up
done
ip rule add pref 100 lookup local
ip rule del pref 0
for number in 1 2; do
    ip rule add pref $number from 10.9.0.$number to 10.9.0.$((3 - number)) lookup $((100 + number))
    ip route add 10.9.0.$((3 - number)) dev $(net_of $number) table $((100 + number))
    until grep -qs ffff:0a09:000$number /sys/class/infiniband/sluice$((number - 1))/ports/2/gids/*; do sleep 0.1; done
done
mount -t configfs none /sys/kernel/config
target=/sys/kernel/config/nvmet
mkdir -p $target/subsystems/sluice/namespaces/1 $target/ports/1
echo 1 >$target/subsystems/sluice/attr_allow_any_host
echo -n /dev/ram0 >$target/subsystems/sluice/namespaces/1/device_path
echo 1 >$target/subsystems/sluice/namespaces/1/enable
echo rdma >$target/ports/1/addr_trtype
echo ipv4 >$target/ports/1/addr_adrfam
echo 10.9.0.2 >$target/ports/1/addr_traddr
echo 4420 >$target/ports/1/addr_trsvcid
ln -s $target/subsystems/sluice $target/ports/1/subsystems/sluice
attach() {
    echo transport=rdma,traddr=10.9.0.2,trsvcid=4420,host_traddr=10.9.0.1,nqn=sluice,nr_io_queues=2 >/dev/nvme-fabrics
    until [ -b /dev/nvme${1}n1 ]; do sleep 0.1; done
}
attach 0
# Of both devices, of the kernel's own, and of nobody else.
of_users() { rdma resource show qp link $1 | grep -c "type RC .*comm \[rdma_cm\]"; }
[ $(of_users sluice0) = 3 ]
[ $(of_users sluice1) = 3 ]
head -c 8M /dev/urandom >/run/random
dd if=/run/random of=/dev/nvme0n1 bs=1M oflag=direct
dd if=/dev/nvme0n1 of=/run/back bs=64k count=128 iflag=direct
cmp /run/random /run/back
# Through the disk itself, as no cache is to say it.
cmp -n 8388608 /run/random /dev/ram0
for at in $(seq 0 7); do
    dd if=/run/random of=/dev/nvme0n1 bs=4k count=64 skip=$((at * 64)) seek=$((2048 + at * 64)) oflag=direct &
    writers="$writers $!"
done
wait $writers
dd if=/dev/nvme0n1 of=/run/back bs=4k skip=2048 count=512 iflag=direct
cmp -n 2097152 /run/random /run/back
echo nvme=ok
# An end in order, and another beginning.
echo 1 >/sys/class/nvme/nvme0/delete_controller
[ $(of_users sluice0) = 0 ]
attach 0
dd if=/dev/nvme0n1 of=/run/back bs=64k count=128 iflag=direct
cmp /run/random /run/back
# And one in the middle of it, from under both.
for writer in 1 2; do
    dd if=/run/random of=/dev/nvme0n1 bs=1M oflag=direct count=8 >/run/written$writer 2>&1
    while [ -b /dev/nvme0n1 ]; do
        dd if=/run/random of=/dev/nvme0n1 bs=64k conv=nocreat oflag=direct >/run/written$writer 2>&1 || :
    done &
    echo $! >>/run/writers
done
rmmod sluice_rdma
# A host that was about to connect anew as its device went has no queue on it by which it would be found
# (nvme_rdma_remove_one), and goes on trying for ten minutes.
left=/sys/class/nvme/nvme0/delete_controller
[ ! -e $left ] || echo 1 >$left || :
wait $(cat /run/writers)
[ ! -e /dev/nvme0n1 ]
$USER unlent $DEVICE
rm $target/ports/1/subsystems/sluice
rmmod sluice_window
nothing_left
echo nvme_removed=ok
"#;

/// Server and client of NFS.
const NFS_MODULES: [&str; 3] = ["nfsd", "nfsv4", "rpcrdma"];

/// A server at one device's address, a client at the other's. What a server's programs would answer is told to its
/// kernel before it asks: who the client is, and what is exported to it (`nfsd.export`, exports(5): with a number of its
/// own, from any port, without a look at the path's subtrees).
const NFS: &str = r#"
both
hosts
as_host() { nsenter --net=/run/netns/host$1 sh -ec "$2"; }
mkdir -p /run/exported /run/mounted /var/lib/nfs/v4recovery
mount -t tmpfs none /run/exported
as_host 2 '
    mount -t nfsd none /proc/fs/nfsd
    echo "nfsd 10.9.0.1 2147483647 client" >/proc/net/rpc/auth.unix.ip/channel
    echo "client 1 \x00000000 2147483647 /run/exported" >/proc/net/rpc/nfsd.fh/channel
    echo "client /run/exported 2147483647 9218 65534 65534 0" >/proc/net/rpc/nfsd.export/channel
    # Version 4 alone, which asks no port mapper.
    echo "-2 -3 +4 +4.1 +4.2" >/proc/fs/nfsd/versions
    # Nothing is to be taken up from before (RFC 8881 §8.4.2.1), for which clients would be waited for, 10 s at least.
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    echo "rdma 20049" >/proc/fs/nfsd/portlist
    echo 4 >/proc/fs/nfsd/threads
'
attach() {
    as_host 1 "mount -i -t nfs4 -o vers=4.2,proto=rdma,port=20049,addr=10.9.0.2,clientaddr=10.9.0.1,sec=sys,$1 10.9.0.2:/ /run/mounted"
}
attach hard
grep "proto=rdma" /proc/mounts
head -c 8M /dev/urandom >/run/random
dd if=/run/random of=/run/mounted/large bs=1M oflag=direct
cmp /run/random /run/exported/large
dd if=/run/mounted/large of=/run/back bs=256k iflag=direct
cmp /run/random /run/back
for at in 0 1 2 3; do
    dd if=/run/random of=/run/mounted/small$at bs=4k count=128 skip=$((at * 128)) oflag=sync &
    writers="$writers $!"
done
wait $writers
for at in 0 1 2 3; do cmp -n 524288 -i $((at * 524288)):0 /run/random /run/exported/small$at; done
# Messages that are longer than what lies in them: names, and many of them.
mkdir /run/mounted/many
for at in $(seq 100); do : >/run/mounted/many/$(printf "a-name-of-some-length-%0150d" $at); done
[ $(ls /run/mounted/many | wc -l) = 100 ]
echo nfs=ok
umount /run/mounted
# The module goes from under both, in the middle of it. The client parts with its server before it lets go of its
# device: what it asks of it (DREQ) is answered, and not given up after the last of 15 more tries, minutes later.
attach soft,timeo=10,retrans=1
dd if=/run/random of=/run/mounted/large bs=64k oflag=direct count=16
while dd if=/run/random of=/run/mounted/large bs=64k conv=notrunc,nocreat oflag=direct >/run/written 2>&1; do :; done &
writer=$!
until [ -s /run/written ]; do sleep 0.1; done
dreq=/sys/class/infiniband/sluice1/ports/2/cm_rx_duplicates/dreq
(while cat $dreq >/run/tries; do if [ -s /run/tries ]; then cp /run/tries /run/last; fi; sleep 0.05; done 2>/dev/null) &
watcher=$!
rmmod sluice_rdma
wait $watcher || :
echo "tries: $(cat /run/last)"
[ $(cat /run/last) -lt 15 ]
wait $writer
umount -f -l /run/mounted
as_host 2 "echo 0 >/proc/fs/nfsd/threads"
$USER unlent $DEVICE
ip netns del host1
ip netns del host2
rmmod sluice_window
nothing_left
echo nfs_removed=ok
"#;

/// Initiator and target of iSER, and disks.
const ISER_MODULES: [&str; 6] = [
    "crc32c_generic",
    "ib_iser",
    "ib_isert",
    "target_core_iblock",
    "sd_mod",
    "brd",
];

/// A target of the kernel's at one device's address, a disk of the initiator's by the other one. Both are of the first
/// network namespace, as neither knows another.
const ISER: &str = r#"
both
ip link set lo up
net_of() { basename /sys/class/infiniband/sluice$(($1 - 1))/device/net/*; }
for number in 1 2; do
    ip addr add 10.9.0.$number/24 dev $(net_of $number)
    ip link set $(net_of $number) up
done
# Both addresses are this host's; who asks for the second one without a word about his own is at the first.
ip rule add pref 100 lookup local
ip rule del pref 0
ip rule add pref 1 from 10.9.0.2 to 10.9.0.1 lookup 102
ip rule add pref 2 to 10.9.0.2 iif lo lookup 101
ip route add 10.9.0.2 dev $(net_of 1) src 10.9.0.1 table 101
ip route add 10.9.0.1 dev $(net_of 2) src 10.9.0.2 table 102
for number in 1 2; do
    until grep -qs ffff:0a09:000$number /sys/class/infiniband/sluice$((number - 1))/ports/2/gids/*; do sleep 0.1; done
done
mount -t configfs none /sys/kernel/config
target=/sys/kernel/config/target
name=iqn.2026-11.dev.sluice:disk
mkdir -p $target/core/iblock_0/disk
echo udev_path=/dev/ram0 >$target/core/iblock_0/disk/control
echo 1 >$target/core/iblock_0/disk/enable
mkdir -p $target/iscsi/$name/tpgt_1/lun/lun_0 $target/iscsi/$name/tpgt_1/np/10.9.0.2:3260
cd $target/iscsi/$name/tpgt_1
ln -s $target/core/iblock_0/disk lun/lun_0/disk
echo 1 >np/10.9.0.2:3260/iser
echo 0 >attrib/authentication
echo 1 >attrib/generate_node_acls
echo 1 >attrib/cache_dynamic_acls
echo 0 >attrib/demo_mode_write_protect
echo 1 >enable
cd /
iscsistart -i iqn.2026-11.dev.sluice:host -t $name -g 1 -a 10.9.0.2 -p 3260 -P iface.transport_name=iser \
    -P node.session.timeo.replacement_timeout=5
until [ -b /dev/sda ]; do sleep 0.1; done
for device in sluice0 sluice1; do rdma resource show qp link $device | grep "type RC .*comm \[rdma_cm\]"; done
head -c 8M /dev/urandom >/run/random
dd if=/run/random of=/dev/sda bs=1M oflag=direct
cmp -n 8388608 /run/random /dev/ram0
dd if=/dev/sda of=/run/back bs=64k count=128 iflag=direct
cmp /run/random /run/back
for at in $(seq 0 7); do
    dd if=/run/random of=/dev/sda bs=4k count=64 skip=$((at * 64)) seek=$((2048 + at * 64)) oflag=direct &
    writers="$writers $!"
done
wait $writers
dd if=/dev/sda of=/run/back bs=4k skip=2048 count=512 iflag=direct
cmp -n 2097152 /run/random /run/back
echo iser=ok
# The module goes from under both, in the middle of it.
while dd if=/run/random of=/dev/sda bs=64k conv=nocreat oflag=direct >/run/written 2>&1; do :; done &
writer=$!
until [ -s /run/written ]; do sleep 0.1; done
rmmod sluice_rdma
wait $writer
echo writer_ended
$USER unlent $DEVICE
rmmod sluice_window
nothing_left
echo iser_removed=ok
"#;

fn iser() -> Verdict {
    if find_program("iscsistart").is_none() {
        return skip("iscsistart is not installed; run scripts/setup test");
    }
    verbs_beside(&ISER_MODULES, SUITE, ISER, &["iser=ok", "iser_removed=ok"])
}
