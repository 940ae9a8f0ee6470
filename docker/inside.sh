#!/bin/sh
# Runs a command inside a candidate, without a daemon: inside.sh LAYOUT COMMAND...
# Unpacks the layers, then changes root in namespaces of its own (mounts, network with loopback only, processes). Needs root, and a Python
# with what the sync tool needs, named by PYTHON.
set -eu
python=${PYTHON:-python3}
layout=$1
shift
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
PYTHONPATH="$(dirname "$0")/.." "$python" -m synctool.images.unpack "$layout" "$root"
# As container runtimes do: names resolve without a network.
printf '127.0.0.1 localhost %s\n' "$(uname -n)" > "$root/etc/hosts"
unshare --mount --net --pid --fork --kill-child sh -euc '
  root=$1; shift
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t sysfs -o ro sysfs "$root/sys" # vLLM asks lscpu for the cores
  ip link set lo up 2>/dev/null || python3 -c "
import fcntl, socket, struct
s = socket.socket()
fcntl.ioctl(s, 0x8914, struct.pack(\"16sH14s\", b\"lo\", 0x49, b\"\"))"
  exec chroot "$root" /usr/bin/env -i HOME=/tmp TMPDIR=/tmp LANG=C.UTF-8 PATH=/opt/vime/bin:/usr/bin:/bin PYTHONPATH=/opt/vime/src \
    PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 sh -c "cd /opt/vime/src && exec \"\$@\"" sh "$@"
' sh "$root" "$@"
