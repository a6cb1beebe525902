// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rancher contains the files, commands and scripts of k3s and RKE2.
//
// Both distributions accept the same configuration, and only their names, paths and a few options differ. Values
// are passed to scripts as arguments and variables, never as part of the script's text.
package rancher

import "github.com/drover-dev/drover/internal/provision/k3s/roster"

// alwaysEncrypted is embedded in RKE2, which encrypts Secrets regardless of its configuration.
type alwaysEncrypted struct{ rancher }

func (alwaysEncrypted) CheckSpec(spec roster.Spec) error { return checkSnapshots(spec) }

// rancher is the distribution k3s or RKE2. Both accept the same configuration. The fields contain the differences
// between them, as documented at docs.k3s.io and docs.rke2.io.
type rancher struct {
	// name is the distribution's name, as used in the names of directories and binaries.
	name string
	// script is the distribution's own installer.
	script string
	// installs returns the environment variables that tell the installer which kind of node to install. They do not
	// include the version.
	installs func(kind string) []string
	// joinPort is the port of a server that other hosts connect to when they join.
	joinPort int
	// server and agent are the systemd units.
	server, agent string
	// cleanServer and cleanAgent are the scripts that remove the distribution from a machine.
	cleanServer, cleanAgent []string
	// dataDirVariable is the environment variable that passes the data directory to cleanServer and cleanAgent.
	dataDirVariable string
	// kubectl is the kubectl command line on a server, and config is its kubeconfig.
	kubectl, config string
	// folders lists directories outside PATH that contain binaries.
	folders []string
	// stopPods lists scripts for stopping processes that outlive the server's service: etcd and the API server, if they
	// run as pods. Only the first existing script is run.
	stopPods []string
	// begins is the option for the host that starts a cluster with etcd. It is empty if the distribution always uses
	// etcd.
	begins string
}

// The distributions of Rancher.
var (
	K3s = rancher{
		name: "k3s", script: "https://get.k3s.io", joinPort: 6443, server: "k3s", agent: "k3s-agent",
		installs: func(kind string) []string {
			return []string{"INSTALL_K3S_EXEC=" + kind, "INSTALL_K3S_SKIP_START=true", "INSTALL_K3S_SKIP_ENABLE=true"}
		},
		cleanServer: places("k3s-uninstall.sh"), cleanAgent: places("k3s-agent-uninstall.sh"), dataDirVariable: "K3S_DATA_DIR",
		kubectl: "k3s kubectl", config: "/etc/rancher/k3s/k3s.yaml", begins: "cluster-init",
	}
	RKE2 = alwaysEncrypted{rancher{
		name: "rke2", script: "https://get.rke2.io", joinPort: 9345, server: "rke2-server", agent: "rke2-agent",
		installs:    func(kind string) []string { return []string{"INSTALL_RKE2_TYPE=" + kind} },
		cleanServer: places("rke2-uninstall.sh"), cleanAgent: places("rke2-uninstall.sh"), dataDirVariable: "RKE2_DATA_DIR",
		kubectl: `"$DATA/bin/kubectl" --kubeconfig /etc/rancher/rke2/rke2.yaml`, config: "/etc/rancher/rke2/rke2.yaml", folders: []string{"/var/lib/rancher/rke2/bin"},
		stopPods: places("rke2-killall.sh"),
	}}
)

// places returns the paths where an installer may have put a script. RKE2's packages use /usr. Both distributions use
// /opt if /usr is read-only.
func places(name string) []string {
	return []string{"/usr/local/bin/" + name, "/opt/bin/" + name, "/opt/rke2/bin/" + name, "/usr/bin/" + name}
}
