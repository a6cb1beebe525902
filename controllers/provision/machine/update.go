// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"strings"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// updateTimeout is how long an update in place may take, in seconds. kubeadm pulls images.
const updateTimeout = 3600

// upgrade installs the programs of a version and has kubeadm change the node to it. What concerns the whole cluster, Cluster API has changed before: so "upgrade node" serves
// the first machine of the control plane, too. Its words come as arguments.
const upgrade = `version=$0 path=$1 url=$2 sum=$3 patches=$4 ignored=$5
export ` + envVersion + `="$version" KUBECONFIG=
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

// update makes the instruction of the action Update.
func update(in taskInput, task infrav1.MachineTask) (protocol.HostInstruction, error) {
	if in.machine.Spec.InPlaceUpdate == nil {
		return protocol.HostInstruction{}, errors.New("spec.inPlaceUpdate of the machine says no installer any more")
	}
	installer := in.machine.Spec.InPlaceUpdate.Installer
	return protocol.HostInstruction{
		Command:        []string{"/bin/sh", "-c", upgrade, task.Update.Version, installer.Path, installer.URL, installer.SHA256, task.Update.Patches, strings.Join(task.Update.IgnorePreflightErrors, ",")},
		TimeoutSeconds: updateTimeout,
	}, nil
}
