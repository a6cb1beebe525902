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

// distribution turns machines into a cluster. The decisions are the same for every distribution. Distributions differ
// only in the files and commands on hosts, which come from these methods. Commands are complete, and each can be
// repeated after an interruption.
type distribution interface {
	// checkConfig reads the user's configuration. Its errors name the field.
	checkConfig(field string, raw []byte) (map[string]any, error)
	// checkKeys refuses to rotate keys if the cluster does not have any.
	checkKeys(spec Spec) error
	// checkSnapshots refuses a snapshot schedule together with configuration that turns snapshots off.
	checkSnapshots(spec Spec) error

	// files returns the files that are written to a host before anything runs. Join is empty for the host that starts
	// the cluster. A change to the files takes effect when the host is restarted.
	files(in *Input, host *member, join string) ([]protocol.HostFile, error)
	// manifest returns the path of the file whose content the servers apply in the cluster.
	manifest(in *Input) string
	// service returns the systemd unit of a host.
	service(host *member) string
	// joinURL returns the URL that hosts use to join through a server with the given address.
	joinURL(address string) string
	// probes returns the probes that check whether a host works.
	probes(in *Input, host *member) []protocol.HostProbe

	// install returns the command that installs the binaries and starts nothing. check returns a command that fails
	// unless the installed programs match the spec.
	install(in *Input, host *member) []string
	check(in *Input) []string
	// start returns the command that starts or restarts a host. The command ends when the host is up.
	start(in *Input, host *member) []string
	// stop returns the command that stops a server, and keeps it from starting when its machine starts.
	stop(in *Input) []string
	// rotateCertificates and rotateKeys return the commands that renew the certificates of a server, and the keys that
	// encrypt Secrets.
	rotateCertificates(in *Input, host *member) []string
	rotateKeys(in *Input) []string

	// snapshot returns the command that takes an etcd snapshot. The name of the snapshot's file starts with the given
	// name.
	snapshot(in *Input, name string) []string
	// find returns a command that fails unless the host has the file of a restore. restore returns the command that
	// then replaces the etcd data with that file and keeps the former data.
	find(in *Input, r *Restoring) []string
	restore(in *Input, r *Restoring) []string
	// keep, resume and rejoin prepare the start of a host during a restore. With keep, the host starts with the
	// restored data; with resume, with its former data; and with rejoin, without any data of its own.
	keep(in *Input) []string
	resume(in *Input) []string
	rejoin(in *Input, epoch string) []string

	// removeNode removes a node from the cluster. forget lets a machine that was reinstalled join under the name of an
	// existing node. keepNodes removes all nodes except the given ones.
	removeNode(in *Input, node string) []string
	forget(in *Input, node string) []string
	keepNodes(in *Input, nodes []string) []string
	// leave makes a server leave etcd. clean removes the distribution from a machine.
	leave(in *Input, node string) []string
	clean(in *Input, host *member) protocol.HostInstruction
	// remove returns the command that removes the distribution from a machine, if it is installed, regardless of who
	// installed it.
	remove() []string
	// kubeconfig is the file that an administrator on a server uses to reach the cluster. programs are the directories
	// with kubectl that are not in PATH.
	kubeconfig() string
	programs() []string
}

// distributions contains all distributions that can be installed. A new one requires a file in this package and an
// entry here.
var distributions = map[provisionv1.Distribution]distribution{
	provisionv1.DistributionK3s:  k3s,
	provisionv1.DistributionRKE2: rke2,
}

// distributionOf returns the distribution with the given name. It returns an error for an unknown name, so that no
// other distribution is installed instead.
func distributionOf(name provisionv1.Distribution) (distribution, error) {
	if found, ok := distributions[name]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("spec.distribution: there is no distribution %q, only %q", name, slices.Sorted(maps.Keys(distributions)))
}

// CheckConfig reads spec.config or spec.serverConfig and checks that the distribution accepts it. The argument field is
// the name of the field. The error names the forbidden option but contains no values.
func CheckConfig(name provisionv1.Distribution, field string, raw []byte) (map[string]any, error) {
	dist, err := distributionOf(name)
	if err != nil {
		return nil, err
	}
	return dist.checkConfig(field, raw)
}

// CheckKeys refuses to rotate keys if the cluster does not have any.
func CheckKeys(spec Spec) error {
	dist, err := distributionOf(spec.Distribution)
	if err != nil || spec.EncryptionKeyRotation == 0 {
		return err
	}
	return dist.checkKeys(spec)
}

// CheckSnapshots refuses a snapshot schedule together with the option that turns the distribution's snapshots off.
func CheckSnapshots(spec Spec) error {
	dist, err := distributionOf(spec.Distribution)
	if err != nil || spec.Etcd.Schedule == "" {
		return err
	}
	return dist.checkSnapshots(spec)
}

// Removals returns the commands that remove any distribution from a machine, by distribution name. Distributions that
// are removed by the same command share an entry.
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

// Kubeconfig is the file that an administrator on a server uses to reach the cluster.
type Kubeconfig struct {
	// Distribution is the distribution that creates the file.
	Distribution string
	File         string
	// Programs are the directories with kubectl that are not in PATH.
	Programs []string
}

// Kubeconfigs returns the file of each distribution.
func Kubeconfigs() (all []Kubeconfig) {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(distributions))) {
		d := distributions[name]
		all = append(all, Kubeconfig{Distribution: string(name), File: d.kubeconfig(), Programs: d.programs()})
	}
	return all
}
