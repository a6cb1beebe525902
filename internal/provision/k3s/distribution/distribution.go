// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package distribution creates the instructions of hosts for any Kubernetes distribution.
//
// It determines which instructions a host gets, and in which order. A Distribution supplies their files and commands.
package distribution

import (
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// Distribution is a Kubernetes distribution that can be installed. All distributions share the same decisions, and
// differ only in the files and commands that these methods return. Each command can be repeated after an interruption.
type Distribution interface {
	Files
	Commands
	Restores
	// Machine describes the distribution on a machine, even if Drover did not install it.
	Machine() Machine
}

// Machine describes a distribution on a machine.
type Machine struct {
	// Distribution is the name of the distribution.
	Distribution string
	// Remove is the command that removes the distribution, if it is installed.
	Remove []string
	// Kubeconfig is the path of the kubeconfig file for administrators on a server.
	Kubeconfig string
	// Programs are the directories outside PATH that contain kubectl.
	Programs []string
}

// Files checks the user's configuration, and turns it into files.
type Files interface {
	// CheckConfig parses and validates the user's configuration. Its errors name the field.
	CheckConfig(field string, raw []byte) (map[string]any, error)
	// CheckSpec returns an error if the configuration prevents the requested rotation of encryption keys, or the
	// scheduled snapshots.
	CheckSpec(spec roster.Spec) error
	// Files returns the files that are written to a host before any command runs. join is empty for the host that
	// starts the cluster. Changed files take effect when the host is restarted.
	Files(in *roster.Input, host *roster.Member, join string) ([]protocol.HostFile, error)
	// Manifest returns the path of the file that the servers apply in the cluster.
	Manifest(in *roster.Input) string
	// JoinURL returns the URL that hosts use to join through a server with the given address.
	JoinURL(address string) string
}

// Commands contains the commands of a host's life in a cluster.
type Commands interface {
	// Install returns the command that installs the binaries without starting them. Check returns a command that fails
	// unless the installed binaries match the spec.
	Install(in *roster.Input, host *roster.Member) []string
	Check(in *roster.Input) []string
	// Service returns the systemd unit of a host. Start returns the command that starts or restarts it, and returns when
	// the host is up. Probes returns the probes that check whether a host is healthy.
	Service(host *roster.Member) string
	Start(in *roster.Input, host *roster.Member) []string
	Probes(in *roster.Input, host *roster.Member) []protocol.HostProbe
	// RotateCertificates returns the command that renews the certificates of a server. RotateKeys returns the command
	// that rotates the keys that encrypt Secrets.
	RotateCertificates(in *roster.Input, host *roster.Member) []string
	RotateKeys(in *roster.Input) []string
	// Snapshot returns the command that takes an etcd snapshot. The name of the snapshot file starts with name.
	Snapshot(in *roster.Input, name string) []string
	// RemoveNode removes a node from the cluster. Leave removes a server from etcd. Clean removes the distribution from
	// a machine.
	RemoveNode(in *roster.Input, node string) []string
	Leave(in *roster.Input, node string) []string
	Clean(in *roster.Input, host *roster.Member) protocol.HostInstruction
}

// Restores contains the commands of a restore.
type Restores interface {
	// Find returns a command that fails unless the host has the file for a restore. Stop returns the command that stops
	// a server. The server does not start again when its machine starts. Restore returns the command that replaces the
	// etcd data with the file and keeps the previous data.
	Find(in *roster.Input, r *roster.Restoring) []string
	Stop(in *roster.Input) []string
	Restore(in *roster.Input, r *roster.Restoring) []string
	// Keep, Resume and Rejoin return commands that prepare the start of a host during a restore. After Keep, the host
	// starts with the restored data. After Resume, it starts with its previous data. After Rejoin, it starts without
	// data.
	Keep(in *roster.Input) []string
	Resume(in *roster.Input) []string
	Rejoin(in *roster.Input, epoch string) []string
	// Forget allows a reinstalled machine to join under the name of an existing node. KeepNodes removes all nodes except
	// the given ones.
	Forget(in *roster.Input, node string) []string
	KeepNodes(in *roster.Input, nodes []string) []string
}
