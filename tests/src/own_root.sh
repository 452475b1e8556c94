# A root that is the host's with a layer over it, which is gone with this process. Sourced by scripts that
# sluice_tests::own_root starts, with the folder for it in $dir; the root is $root then, with /tmp, /run and /dev of its own.

fail() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}

# In namespaces of its own it is the first process; elsewhere it would work on the host.
(($$ == 1)) || fail "not in namespaces of its own"
mount --make-rprivate /
mount -t tmpfs layer "$dir"

# Mounts a folder over another one, with what is written there kept in $dir.
layer() { # name, folder, where
    mkdir -p "$dir/$1-upper" "$dir/$1-work" "$3"
    mount -t overlay "$1" -o "lowerdir=$2,upperdir=$dir/$1-upper,workdir=$dir/$1-work" "$3"
}
root=$dir/root
layer root / "$root"
mount -t proc proc "$root/proc"
for folder in tmp run dev; do mount -t tmpfs "$folder" "$root/$folder"; done
chmod 1777 "$root/tmp"
for device in null zero random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"
mount -t tmpfs shm "$root/dev/shm"
