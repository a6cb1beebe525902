// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

// clean is a script that runs the uninstall scripts in its arguments, if they exist. It fails if k3s or RKE2 is still
// running afterward. Without this check, a host whose installer put the uninstall script in a different place would be
// considered clean even though it is still a node.
//
// The script also removes data that the uninstall scripts leave behind: the node's password, and data in a user-defined
// directory. Uninstall scripts released before July 2024 do not remove that directory. RKE2's script fails if that
// directory is a mount point, but only after it has emptied the directory.
const clean = `ran=
for script in "$@"; do
	test -x "$script" || continue
	ran=1; "$script" && continue; code=$?
	test -n "${RKE2_DATA_DIR:-}" && mountpoint -q "$RKE2_DATA_DIR" || exit "$code"
	echo "$script has failed, since $RKE2_DATA_DIR is a mount point, which stays" >&2
done
for unit in rke2-server rke2-agent k3s k3s-agent; do
	case $(systemctl is-active "$unit" 2>/dev/null) in active|activating|reloading|deactivating)
		echo "$unit still runs: no script that removes it is at $*, or the script has left it; remove it on the machine" >&2; exit 1
	esac
done
for folder in "${K3S_DATA_DIR:-}" "${RKE2_DATA_DIR:-}"; do
	test -n "$ran" && test -n "$folder" || continue
	for part in server agent data bin; do test ! -d "$folder/$part" || find "$folder/$part" -xdev -depth -delete || exit; done
done
rm -rf /etc/rancher/node`
