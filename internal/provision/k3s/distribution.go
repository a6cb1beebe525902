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

// distribution makes a cluster of machines. What is decided here is the same for each of them; what hosts have and run
// for it comes from these methods alone. Commands are complete, and each may be repeated after it was interrupted.
type distribution interface {
	// checkConfig reads configuration of the user's, which field names in errors.
	checkConfig(field string, raw []byte) (map[string]any, error)
	// checkKeys refuses a rotation of keys that a cluster does not have.
	checkKeys(spec Spec) error
	// checkSnapshots refuses a schedule of snapshots beside configuration that has none made.
	checkSnapshots(spec Spec) error

	// files are on a host before anything runs. An empty join is for the host that begins the cluster. A change of them
	// takes effect when the host is started again.
	files(in *Input, host *member, join string) ([]protocol.HostFile, error)
	// manifest is the file whose content the servers apply in the cluster.
	manifest(in *Input) string
	// service is the unit of a host.
	service(host *member) string
	// joinURL leads hosts to a server that has the address.
	joinURL(address string) string
	// probes say whether a host works.
	probes(in *Input, host *member) []protocol.HostProbe

	// install installs the programs, and starts nothing; check fails unless what is installed is as spec says.
	install(in *Input, host *member) []string
	check(in *Input) []string
	// start starts a host, or starts it again. It returns when the host is up.
	start(in *Input, host *member) []string
	// stop stops a server, and keeps it from starting with its machine.
	stop(in *Input) []string
	// rotateCertificates and rotateKeys renew the certificates of a server, and the keys that encrypt Secrets.
	rotateCertificates(in *Input, host *member) []string
	rotateKeys(in *Input) []string

	// snapshot makes a snapshot of etcd. The name of its file begins with the name that is given.
	snapshot(in *Input, name string) []string
	// find fails unless a host has the file of a restore, which restore then makes the data of etcd, and keeps what was
	// there.
	find(in *Input, r *Restoring) []string
	restore(in *Input, r *Restoring) []string
	// keep has a host that has restored a snapshot start with it, resume with the data that it had before, and rejoin
	// without data of its own.
	keep(in *Input) []string
	resume(in *Input) []string
	rejoin(in *Input, epoch string) []string

	// removeNode removes a node from the cluster, forget lets a machine that was installed anew join by the name of a
	// node, and keepNodes removes all nodes but some.
	removeNode(in *Input, node string) []string
	forget(in *Input, node string) []string
	keepNodes(in *Input, nodes []string) []string
	// leave has a server leave etcd, and clean removes the distribution from a machine.
	leave(in *Input, node string) []string
	clean(in *Input, host *member) protocol.HostInstruction
	// remove removes it from a machine on which it may be, whoever installed it there.
	remove() []string
	// kubeconfig is what an administrator of a server reaches the cluster with, and programs are the folders with
	// kubectl that are not in PATH.
	kubeconfig() string
	programs() []string
}

// distributions has all that can be installed. Another one is a file of this package and a row here.
var distributions = map[provisionv1.Distribution]distribution{
	provisionv1.DistributionK3s:  k3s,
	provisionv1.DistributionRKE2: rke2,
}

// distributionOf returns the distribution of a name. A name without one is an error: nothing else is installed in its
// place.
func distributionOf(name provisionv1.Distribution) (distribution, error) {
	if found, ok := distributions[name]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("spec.distribution: there is no distribution %q, but %q", name, slices.Sorted(maps.Keys(distributions)))
}

// CheckConfig reads spec.config or spec.serverConfig, which field says, as the distribution takes it. Its error says
// what cannot be in it, and has no value of it.
func CheckConfig(name provisionv1.Distribution, field string, raw []byte) (map[string]any, error) {
	dist, err := distributionOf(name)
	if err != nil {
		return nil, err
	}
	return dist.checkConfig(field, raw)
}

// CheckKeys refuses a rotation of keys that a cluster does not have.
func CheckKeys(spec Spec) error {
	dist, err := distributionOf(spec.Distribution)
	if err != nil || spec.EncryptionKeyRotation == 0 {
		return err
	}
	return dist.checkKeys(spec)
}

// CheckSnapshots refuses a schedule of snapshots beside the option that has the distribution make none.
func CheckSnapshots(spec Spec) error {
	dist, err := distributionOf(spec.Distribution)
	if err != nil || spec.Etcd.Schedule == "" {
		return err
	}
	return dist.checkSnapshots(spec)
}

// Removals are the commands that remove whatever distribution is on a machine, by its name. Distributions that are
// removed by the same command have it once.
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

// Kubeconfig is the file by which an administrator of a server reaches the cluster.
type Kubeconfig struct {
	// Distribution that leaves it.
	Distribution string
	File         string
	// Programs are the folders with kubectl that are not in PATH.
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
