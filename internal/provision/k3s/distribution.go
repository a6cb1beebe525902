// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// distribution is a Kubernetes distribution that can be installed. All distributions share the same decisions, and
// differ only in the files and commands that these methods return. Each command can be repeated after an interruption.
type distribution interface {
	// checkConfig parses and validates the user's configuration. Its errors name the field.
	checkConfig(field string, raw []byte) (map[string]any, error)
	// checkKeys returns an error if the spec requests a rotation of encryption keys and the cluster has no such keys.
	checkKeys(spec Spec) error
	// checkSnapshots returns an error if the spec has a snapshot schedule and the configuration turns snapshots off.
	checkSnapshots(spec Spec) error

	// files returns the files that are written to a host before any command runs. join is empty for the host that
	// starts the cluster. Changed files take effect when the host is restarted.
	files(in *Input, host *member, join string) ([]protocol.HostFile, error)
	// manifest returns the path of the file that the servers apply in the cluster.
	manifest(in *Input) string
	// service returns the systemd unit of a host.
	service(host *member) string
	// joinURL returns the URL that hosts use to join through a server with the given address.
	joinURL(address string) string
	// probes returns the probes that check whether a host is healthy.
	probes(in *Input, host *member) []protocol.HostProbe

	// install returns the command that installs the binaries without starting them. check returns a command that fails
	// unless the installed binaries match the spec.
	install(in *Input, host *member) []string
	check(in *Input) []string
	// start returns the command that starts or restarts a host. The command returns when the host is up.
	start(in *Input, host *member) []string
	// stop returns the command that stops a server. The server does not start again when its machine starts.
	stop(in *Input) []string
	// rotateCertificates returns the command that renews the certificates of a server. rotateKeys returns the command
	// that rotates the keys that encrypt Secrets.
	rotateCertificates(in *Input, host *member) []string
	rotateKeys(in *Input) []string

	// snapshot returns the command that takes an etcd snapshot. The name of the snapshot file starts with name.
	snapshot(in *Input, name string) []string
	// find returns a command that fails unless the host has the file for a restore. restore returns the command that
	// replaces the etcd data with that file and keeps the previous data.
	find(in *Input, r *Restoring) []string
	restore(in *Input, r *Restoring) []string
	// keep, resume and rejoin return commands that prepare the start of a host during a restore. After keep, the host
	// starts with the restored data. After resume, it starts with its previous data. After rejoin, it starts without
	// data.
	keep(in *Input) []string
	resume(in *Input) []string
	rejoin(in *Input, epoch string) []string

	// removeNode removes a node from the cluster. forget allows a reinstalled machine to join under the name of an
	// existing node. keepNodes removes all nodes except the given ones.
	removeNode(in *Input, node string) []string
	forget(in *Input, node string) []string
	keepNodes(in *Input, nodes []string) []string
	// leave removes a server from etcd. clean removes the distribution from a machine.
	leave(in *Input, node string) []string
	clean(in *Input, host *member) protocol.HostInstruction
	// remove returns the command that removes the distribution from a machine if it is installed, even if Drover did
	// not install it.
	remove() []string
	// kubeconfig returns the path of the kubeconfig file for administrators on a server. programs returns the
	// directories outside PATH that contain kubectl.
	kubeconfig() string
	programs() []string
}

// distributions contains all distributions that can be installed. A new distribution requires a file in this package
// and an entry here.
var distributions = map[provisionv1.Distribution]distribution{
	provisionv1.DistributionK3s:  k3s,
	provisionv1.DistributionRKE2: rke2,
}

// distributionOf returns the distribution with the given name. It returns an error if the name is unknown. Otherwise, a
// different distribution might be installed.
func distributionOf(name provisionv1.Distribution) (distribution, error) {
	if found, ok := distributions[name]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("spec.distribution: there is no distribution %q, only %q", name, slices.Sorted(maps.Keys(distributions)))
}

// CheckConfig parses spec.config or spec.serverConfig, and checks that the distribution accepts it. field is the name
// of the spec field, for errors. Errors name forbidden options, but contain no values.
func CheckConfig(name provisionv1.Distribution, field string, raw []byte) (map[string]any, error) {
	dist, err := distributionOf(name)
	if err != nil {
		return nil, err
	}
	return dist.checkConfig(field, raw)
}

// CheckKeys returns an error if the spec requests a rotation of encryption keys and the cluster has no such keys.
func CheckKeys(spec Spec) error {
	dist, err := distributionOf(spec.Distribution)
	if err != nil || spec.EncryptionKeyRotation == 0 {
		return err
	}
	return dist.checkKeys(spec)
}

// CheckSnapshots returns an error if the spec has a snapshot schedule and the configuration turns snapshots off.
func CheckSnapshots(spec Spec) error {
	dist, err := distributionOf(spec.Distribution)
	if err != nil || spec.Etcd.Schedule == "" {
		return err
	}
	return dist.checkSnapshots(spec)
}

// Removals returns the commands that remove distributions from a machine, by distribution name. If several
// distributions are removed by the same command, only one of them has an entry.
func Removals() map[string][]string {
	all, seen := map[string][]string{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(distributions)) {
		command := distributions[name].remove()
		if key := strings.Join(command, "\x00"); !seen[key] {
			seen[key], all[string(name)] = true, command
		}
	}
	return all
}

// Kubeconfig describes the kubeconfig file for administrators on a server.
type Kubeconfig struct {
	// Distribution is the distribution that creates the file.
	Distribution string
	File         string
	// Programs are the directories outside PATH that contain kubectl.
	Programs []string
}

// Kubeconfigs returns the Kubeconfigs of all distributions.
func Kubeconfigs() (all []Kubeconfig) {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(distributions))) {
		d := distributions[name]
		all = append(all, Kubeconfig{Distribution: string(name), File: d.kubeconfig(), Programs: d.programs()})
	}
	return all
}
