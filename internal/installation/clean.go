// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

// Clean is a script that runs those of its arguments that are there, and fails if k3s or RKE2 runs after that: an installer may have left its script at another
// place, and a host that looks clean would still be a node.
const Clean = `for script in "$@"; do if test -x "$script"; then "$script" || exit; fi; done
for unit in rke2-server rke2-agent k3s k3s-agent; do
	case $(systemctl is-active "$unit" 2>/dev/null) in active|activating|reloading|deactivating)
		echo "$unit still runs: no script that removes it is at $*, or the script has left it; remove it on the machine" >&2; exit 1
	esac
done`

// Uninstallers returns where the installers of k3s and RKE2 leave the scripts that remove them.
func Uninstallers() []string {
	var all []string
	for _, name := range []string{"rke2-uninstall.sh", "k3s-uninstall.sh", "k3s-agent-uninstall.sh"} {
		all = append(all, places(name)...)
	}
	return all
}

// places returns where an installer may have left a script: RKE2's packages are below /usr, and where /usr cannot be written, both are below /opt.
func places(name string) []string {
	return []string{"/usr/local/bin/" + name, "/opt/bin/" + name, "/opt/rke2/bin/" + name, "/usr/bin/" + name}
}
