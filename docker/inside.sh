#!/bin/sh
# Runs a command inside a candidate, without a daemon: inside.sh LAYOUT COMMAND...
# Unpacks the layers, then changes root in namespaces of its own (mounts, network with loopback only, processes). Needs root, tar and python3.
set -eu
layout=$1
shift
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
blobs=$(python3 - "$layout" <<'PY'
import json, sys
from pathlib import Path
layout = Path(sys.argv[1])
blob = lambda digest: layout / "blobs" / digest.replace(":", "/")
index = json.loads((layout / "index.json").read_text())
for layer in json.loads(blob(index["manifests"][0]["digest"]).read_text())["layers"]:
    print(blob(layer["digest"]).resolve())
PY
)
for blob in $blobs; do tar -xf "$blob" -C "$root" --numeric-owner; done
unshare --mount --net --pid --fork --kill-child sh -euc '
  root=$1; shift
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  ip link set lo up 2>/dev/null || python3 -c "
import fcntl, socket, struct
s = socket.socket()
fcntl.ioctl(s, 0x8914, struct.pack(\"16sH14s\", b\"lo\", 0x49, b\"\"))"
  exec chroot "$root" /usr/bin/env -i HOME=/tmp TMPDIR=/tmp LANG=C.UTF-8 PATH=/opt/vime/bin:/usr/bin:/bin PYTHONPATH=/opt/vime/src \
    PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 sh -c "cd /opt/vime/src && exec \"\$@\"" sh "$@"
' sh "$root" "$@"
