// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"fmt"
	"maps"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/installation"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/status"
)

// maxWaiting is how many hosts a status names, as the schema has it.
const maxWaiting = 16

// judge says how an installation is by what was decided. It is pure.
func judge(in *input, d installation.Decision) verdict {
	v := verdict{decision: d}
	switch {
	case len(d.Take)+len(d.Release) > 0:
		v.again = soon
	case len(in.former) > 0, slices.ContainsFunc(in.decide.Hosts, func(h installation.Host) bool { return h.Leaving && !h.Connected }):
		v.again = leaveTime
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
		v.reason, v.message = provisionv1.ReasonRestoring, fmt.Sprintf("EtcdRestore %s is under way, and nothing else is changed%s", d.Restore.Name, waitsFor(d.Restore))
	case d.Lost && len(in.former) > 0:
		v.stalled, v.reason = true, provisionv1.ReasonEtcdLost
		v.message = fmt.Sprintf("%d Hosts, such as %s, are taken by a former installation of this name and keep their plans: nothing is changed; if nothing runs on them any more, delete the Secrets with their plans, which cleans the machines",
			len(in.former), in.former[0].Name)
	case d.Lost:
		v.stalled, v.reason = true, provisionv1.ReasonEtcdLost
		v.message = "no host has the cluster's data any more, and nothing is installed anew in its place: make an EtcdRestore of a snapshot's file that is in the bucket or on the disk of a Host that a pool selects, or delete the installation and the Cluster to begin again"
	case d.Unselected:
		v.stalled, v.reason = true, provisionv1.ReasonEtcdUnselected
		v.message = "hosts have the cluster's data, and no pool selects one of them: nothing is changed; mend the selectors, the roles or the labels, or delete the installation"
	case d.Missing > 0:
		v.reason, v.message = provisionv1.ReasonTooFewHosts, fmt.Sprintf("%d more free Hosts are needed that the pools select%s", d.Missing, first)
	case d.Hosts == 0:
		v.reason, v.message = provisionv1.ReasonTooFewHosts, "the pools select no Host that is free"
	case d.Stored.KeysProblem != "" && d.Stored.KeysFailed == in.installation.Spec.EncryptionKeyRotation:
		v.stalled, v.reason = true, provisionv1.ReasonKeysNotRotated
		v.message = "the encryption keys were not rotated; raise spec.encryptionKeyRotation to try it again: " + d.Stored.KeysProblem
	case d.Ready < d.Hosts || len(d.Take) > 0:
		v.reason, v.message = provisionv1.ReasonHostsWaiting, fmt.Sprintf("%d of %d hosts are ready%s", d.Ready, d.Hosts, first)
	default:
		v.ready, v.reason, v.message = true, provisionv1.ReasonInstalled, fmt.Sprintf("%d hosts have %s", d.Hosts, in.installation.Spec.Version)
	}
	return v
}

// writeStatus writes what was decided.
func writeStatus(in *input, v verdict) {
	s := &in.installation.Status
	if v.decision.Plans != nil { // the planner was asked
		s.Hosts, s.Ready, s.Summary, s.Waiting = int32(v.decision.Hosts), int32(v.decision.Ready), fmt.Sprintf("%d/%d", v.decision.Ready, v.decision.Hosts), nil
		for _, host := range slices.Sorted(maps.Keys(v.decision.Waiting)) {
			if why := v.decision.Waiting[host]; why != "" && len(s.Waiting) < maxWaiting {
				s.Waiting = append(s.Waiting, provisionv1.WaitingHost{Host: host, Message: protocol.Cut(why, 512)})
			}
		}
	}
	status.Readiness{Ready: v.ready, Stalled: v.stalled, Reason: v.reason, Message: v.message}.Write(in.installation.Generation, &s.ObservedGeneration, &s.Conditions)
}
