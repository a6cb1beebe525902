// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"strings"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	// Kubeconfig is the kubeconfig file for administrators on a control plane machine.
	Kubeconfig = "/etc/kubernetes/admin.conf"
	// VersionVariable is the environment variable that contains the Kubernetes version for installers and bootstrap
	// commands.
	VersionVariable = "KUBERNETES_VERSION"
)

// Timeouts of commands, in seconds. They include the time that kubeadm needs to pull images.
const (
	updateTimeout = 3600
	resetTimeout  = 1800
)

// reset removes everything that kubeadm, or any other node installation, has left on a machine. It keeps the CNI
// directory, because containerd watches that directory and would not notice a new one. "kubeadm reset" is not
// sufficient. It does not remove the rules of kube-proxy, which would route Service addresses of the next cluster to
// the API servers of this cluster. It also empties the etcd directory before etcd has stopped. If the kubelet restarts
// etcd, the new data prevents kubeadm from creating a control plane on the machine again.
const reset = `if command -v kubeadm >/dev/null; then kubeadm reset --force || exit; fi
for family in ip ip6; do if nft list table $family kube-proxy >/dev/null 2>&1; then nft delete table $family kube-proxy || exit; fi; done
for tool in iptables ip6tables; do
	if $tool-save 2>/dev/null | grep -q KUBE-; then $tool-save | grep -v KUBE- | $tool-restore || exit; fi
done
rm -rf /run/cluster-api /run/kubeadm /etc/cni/net.d/* /var/lib/etcd/member`

// Remove returns the instruction that removes everything that kubeadm has left on a machine, even if the bootstrap was
// not completed. It keeps files that the user's own commands have created. The caller sets the ID.
func Remove() protocol.HostInstruction {
	return protocol.HostInstruction{Command: []string{"/bin/sh", "-c", reset}, TimeoutSeconds: resetTimeout}
}

// upgrade installs the binaries of a version and upgrades the node with kubeadm. It runs "upgrade node" even on the
// first control plane machine, because Cluster API has already made the changes that affect the whole cluster. The
// values are passed as arguments.
const upgrade = `version=$0 path=$1 url=$2 sum=$3 patches=$4 ignored=$5
export ` + VersionVariable + `="$version" KUBECONFIG=
if test -z "$path"; then path=$(mktemp) && trap 'rm -f "$path"' EXIT || exit; fi
attempt() {
	if test -n "$url"; then
		curl -fsSL --proto =https --retry 3 -o "$path" "$url" || return
		test -z "$sum" || echo "$sum  $path" | sha256sum -c - || return
	fi
	sh "$path"
}
for i in 1 2 3 4 5; do
	if attempt; then break; fi
	echo "attempt $i of 5 to install Kubernetes $version has failed" >&2
	test "$i" -lt 5 || exit 1
	sleep 10
done
found=$(kubeadm version -o short) || exit
if test "$found" != "$version"; then echo "the installer has put kubeadm $found on the machine, want $version" >&2; exit 1; fi
kubeadm upgrade node ${patches:+"--patches=$patches"} ${ignored:+"--ignore-preflight-errors=$ignored"} || exit
systemctl daemon-reload && systemctl restart kubelet`

// Update returns the instruction that updates a node in place. The caller sets the ID.
func Update(task infrav1.UpdateTask, by infrav1.Installer) protocol.HostInstruction {
	return protocol.HostInstruction{
		Command: []string{"/bin/sh", "-c", upgrade, task.Version, by.Path, by.URL, by.SHA256, task.Patches,
			strings.Join(task.IgnorePreflightErrors, ",")},
		TimeoutSeconds: updateTimeout,
	}
}
