// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"fmt"
	"maps"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/status"
)

// maxWaiting is the maximum number of hosts that a status lists. The schema defines the same limit.
const maxWaiting = 16

// judge returns an installation's readiness after a decision. It has no side effects.
func judge(in *input, d decision.Decision) status.Readiness {
	var v status.Readiness
	switch {
	case len(d.Take)+len(d.Release) > 0:
		v.Again = soon
	case len(in.former) > 0, slices.ContainsFunc(in.decide.Hosts, func(h roster.Host) bool { return h.Leaving && !h.Connected }):
		v.Again = leaveTime
	}
	first := ""
	for _, host := range slices.Sorted(maps.Keys(d.Waiting)) {
		if why := d.Waiting[host]; why != "" {
			first = fmt.Sprintf("; host %s %s", host, why)
			break
		}
	}
	switch {
	case d.Restore.Step != "":
		v.Reason, v.Message = provisionv1.ReasonRestoring, fmt.Sprintf("EtcdRestore %s is in progress, and nothing else is changed%s", d.Restore.Name, d.Restore.WaitsFor())
	case d.Lost && len(in.former) > 0:
		v.Stalled, v.Reason = true, provisionv1.ReasonEtcdLost
		v.Message = fmt.Sprintf("%d Hosts, such as %s, are claimed by a former installation of this name and keep their instructions: "+
			"nothing is changed. If nothing runs on them any more, delete the Secrets with the instructions, which cleans the machines",
			len(in.former), in.former[0].Name)
	case d.Lost:
		v.Stalled, v.Reason = true, provisionv1.ReasonEtcdLost
		v.Message = "no host has the cluster's data any more, and no new cluster is installed in its place: create an EtcdRestore for a snapshot's file that is in the bucket or on the disk of a Host that a pool selects, or delete the installation and the Cluster to begin again"
	case d.Unselected:
		v.Stalled, v.Reason = true, provisionv1.ReasonEtcdUnselected
		v.Message = "hosts have the cluster's data, but no pool selects any of them, so nothing is changed: correct the selectors, the roles or the labels, or delete the installation"
	case d.Missing > 0:
		v.Reason, v.Message = provisionv1.ReasonTooFewHosts, fmt.Sprintf("%d more free Hosts that the pools select are needed%s", d.Missing, first)
	case d.Hosts == 0:
		v.Reason, v.Message = provisionv1.ReasonTooFewHosts, "the pools select no Host that is free"
	case d.Stored.KeysProblem != "" && d.Stored.KeysFailed == in.installation.Spec.EncryptionKeyRotation:
		v.Stalled, v.Reason = true, provisionv1.ReasonKeysNotRotated
		v.Message = "the encryption keys were not rotated; raise spec.encryptionKeyRotation to try it again: " + d.Stored.KeysProblem
	case d.Ready < d.Hosts || len(d.Take) > 0:
		v.Reason, v.Message = provisionv1.ReasonHostsWaiting, fmt.Sprintf("%d of %d hosts are ready%s", d.Ready, d.Hosts, first)
	default:
		v.Ready, v.Reason, v.Message = true, provisionv1.ReasonInstalled, fmt.Sprintf("%d hosts have %s%s", d.Hosts, in.installation.Spec.Version, strangers(in, d))
	}
	return v
}

// strangers returns a remark if the cluster has nodes that do not belong to its hosts. Otherwise, it returns "". Such a
// node can exist if a server's Host is deleted while the Host's agent is disconnected: as long as the machine is
// running, the server rejoins etcd.
func strangers(in *input, d decision.Decision) string {
	if in.cluster == nil || in.cluster.Status.Nodes == nil || int(in.cluster.Status.Nodes.Total) <= len(d.Stored.Nodes) {
		return ""
	}
	return fmt.Sprintf("; Cluster %s has %d nodes, and %d of them are hosts: if another was one, switch its machine off, then delete the node",
		in.cluster.Name, in.cluster.Status.Nodes.Total, len(d.Stored.Nodes))
}

// writeStatus writes the results of a decision to the status.
func writeStatus(in *input, v status.Readiness) {
	s := &in.installation.Status
	if in.decision.Instructions != nil { // a decision has been made
		s.Hosts, s.Ready, s.Summary, s.Waiting = int32(in.decision.Hosts), int32(in.decision.Ready), fmt.Sprintf("%d/%d", in.decision.Ready, in.decision.Hosts), nil
		for _, host := range slices.Sorted(maps.Keys(in.decision.Waiting)) {
			if why := in.decision.Waiting[host]; why != "" && len(s.Waiting) < maxWaiting {
				s.Waiting = append(s.Waiting, provisionv1.WaitingHost{Host: host, Message: protocol.Cut(why, 512)})
			}
		}
	}
	v.Write(in.installation.Generation, &s.ObservedGeneration, &s.Conditions)
}
