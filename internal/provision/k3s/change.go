// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"fmt"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/restore"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// turns tracks the hosts that are being restarted. Other hosts must wait for them.
type turns struct {
	// changing is a server that is being started, or "" if there is none.
	changing string
	// unavailable counts the workers that are being started.
	unavailable int
}

// change gives new instructions to hosts that have joined and can be changed now.
func change(d *decision.Draft, removes []distribution.Removal) error {
	if err := restore.Resume(d, removes); err != nil {
		return err
	}
	by := operator(d)
	now := &turns{changing: changing(d), unavailable: unavailable(d)}
	for _, m := range d.Roster.Ordered() {
		if m.Held == nil {
			continue
		}
		if d.Roster.WaitsToStart(m) {
			if err := restore.StartAgain(d, m); err != nil {
				return err
			}
			continue
		}
		var mine []distribution.Removal
		if by != nil && m.Name == by.Name {
			mine = removes
		}
		if err := changeHost(d, m, d.Duties(m, mine), now); err != nil {
			return err
		}
	}
	return nil
}

// changeHost gives a host its instructions. Instructions that do not restart the host are given immediately. Otherwise,
// the host may have to wait for other hosts.
func changeHost(d *decision.Draft, m *roster.Member, does distribution.Duties, now *turns) error {
	next, err := d.Writer.Render(m, m.Held.Join, does)
	if err == nil && next.Start != m.Held.Start {
		next, err = d.Writer.Render(m, rejoin(d, m), does)
	}
	if err != nil {
		return err
	}
	d.Out.Waiting[m.Name] = m.Busy()
	if does.Task != nil && m.Up() {
		d.Out.Waiting[m.Name] = "is told to " + d.Task.What
	}
	starts := next.Start != m.Held.Start
	if next.Changed = starts || m.Held.Changed; !starts {
		d.Out.Instructions[m.Name] = next
		return nil
	}
	if why := mayChange(d, m, now); why != "" {
		d.Out.Waiting[m.Name] = "waits for " + why + ", to be changed"
		return nil
	}
	d.Out.Instructions[m.Name] = next
	d.Out.Waiting[m.Name] = "is changed"
	if m.IsServer() {
		now.changing = m.Name
	} else {
		now.unavailable++
	}
	return nil
}

// rejoin returns the URL that a host uses to find the cluster after a restart. If the server through which a host
// joined is gone, the host needs a new URL. An etcd member does not, because it finds the other servers through etcd.
func rejoin(d *decision.Draft, m *roster.Member) string {
	known := func(s *roster.Member) bool {
		return s.Address != "" && d.Writer.Distribution.JoinURL(s.Address) == m.Held.Join
	}
	if m.Is(provisionv1.RoleEtcd) || slices.ContainsFunc(d.Roster.Stay, known) {
		return m.Held.Join
	}
	url, _ := wayIn(d, m)
	return cmp.Or(url, m.Held.Join)
}

// wayIn returns the URL that a host uses to join, or the reason why the host must wait. The URL is empty for the host
// that starts the cluster.
func wayIn(d *decision.Draft, m *roster.Member) (url, why string) {
	if m.Name == d.Roster.Stored.First && !d.Roster.Stored.Begun {
		return "", ""
	}
	role := provisionv1.RoleEtcd
	if !m.IsServer() { // the kubelet registers with an API server
		role = provisionv1.RoleControlPlane
	}
	if !d.Roster.Stored.Begun {
		return "", fmt.Sprintf("host %s, which begins the cluster", d.Roster.Stored.First)
	}
	up := slices.DeleteFunc(d.Roster.With(role), func(s *roster.Member) bool { return !s.Up() || s.Address == "" })
	if len(up) == 0 {
		return "", fmt.Sprintf("a host with the role %s that is up", role)
	}
	if first := slices.IndexFunc(up, func(s *roster.Member) bool { return s.Name == d.Roster.Stored.First }); first > 0 {
		up[0] = up[first]
	}
	return d.Writer.Distribution.JoinURL(up[0].Address), ""
}

// mayChange returns the reason why a host cannot be restarted yet, or "" if it can be restarted now. A connected host
// that is not working does not have to wait for other hosts.
func mayChange(d *decision.Draft, m *roster.Member, now *turns) (why string) {
	switch {
	case !m.Connected:
		return "its agent, which is not connected"
	case m.IsServer() && d.Task != nil && d.Task.Calm:
		return fmt.Sprintf("server %s to %s", d.Task.Host, d.Task.What)
	case m.IsServer() && now.changing != "" && now.changing != m.Name:
		return fmt.Sprintf("server %s: servers are changed one at a time; if it will not come back, delete its Host", now.changing)
	case !m.Working():
		return ""
	case m.IsServer() && broken(d, m) != "":
		return fmt.Sprintf("server %s: this change has broken it, and no other server is changed before that is repaired, "+
			"or the spec is changed back", broken(d, m))
	case m.Is(provisionv1.RoleControlPlane) && d.Out.Stuck:
		return "" // briefly losing quorum is better than having no server that can remove dead members
	case m.Is(provisionv1.RoleEtcd) && !d.Roster.CanSpareOne():
		return "the other servers with etcd to be up: without it etcd would have no quorum"
	case m.IsServer():
		return ""
	}
	if m.Held.Version != d.Roster.Spec.Version {
		if server := d.Roster.Behind(); server != "" {
			return fmt.Sprintf("server %s to have version %s: no worker is newer than a server", server, d.Roster.Spec.Version)
		}
	}
	if now.unavailable >= int(max(d.Roster.Spec.MaxUnavailable, 1)) {
		return fmt.Sprintf("other workers: at most %d are changed at a time", max(d.Roster.Spec.MaxUnavailable, 1))
	}
	return ""
}

// changing returns a server that is being started, or "" if there is none. Other servers do not wait for a server that
// has failed. They wait for a disconnected server only if it lost its connection during the change.
func changing(d *decision.Draft) string {
	for _, m := range d.Roster.Ordered() {
		if m.IsServer() && m.Held != nil && m.State.Busy() && (m.Connected || m.Held.Changed && d.IsCurrent(m)) {
			return m.Name
		}
	}
	return ""
}

// unavailable counts the workers that are being changed, and the workers that failed or lost their connection because
// of the current change. The count prevents one change from breaking all workers. Workers that were already broken are
// not counted.
func unavailable(d *decision.Draft) (n int) {
	for _, m := range d.Roster.Stay {
		if m.IsServer() || m.Held == nil || !m.Held.Changed || m.Up() {
			continue
		}
		if (m.Connected || m.State.Busy()) && d.IsCurrent(m) {
			n++
		}
	}
	return n
}

// broken returns a server that the current change has broken, or "" if there is none. It includes servers that are
// leaving the cluster, but not other, the server that is to be changed next.
func broken(d *decision.Draft, other *roster.Member) string {
	for _, m := range slices.Concat(d.Roster.Ordered(), d.Roster.Leavers()) {
		if m.IsServer() && m.Name != other.Name && m.Held != nil && m.Held.Changed && m.Connected && m.State == progress.Failed && d.IsCurrent(m) {
			return m.Name
		}
	}
	return ""
}
