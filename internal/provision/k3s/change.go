// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"fmt"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// turns tracks the hosts that are being restarted. Other hosts must wait for them.
type turns struct {
	// changing is a server that is being started, or "" if there is none.
	changing string
	// unavailable counts the workers that are being started.
	unavailable int
}

// change gives new instructions to hosts that have joined and can be changed now.
func (d *decision) change(removes []removal) error {
	if err := d.resume(removes); err != nil {
		return err
	}
	operator := d.operator()
	now := &turns{changing: d.changing(), unavailable: d.unavailable()}
	for _, m := range d.ordered() {
		if m.Held == nil {
			continue
		}
		if d.waitsToStart(m) {
			if err := d.startAgain(m); err != nil {
				return err
			}
			continue
		}
		var mine []removal
		if operator != nil && m.Name == operator.Name {
			mine = removes
		}
		if err := d.changeHost(m, d.dutiesOf(m, mine), now); err != nil {
			return err
		}
	}
	return nil
}

// changeHost gives a host its instructions. Instructions that do not restart the host are given immediately. Otherwise,
// the host may have to wait for other hosts.
func (d *decision) changeHost(m *member, does duties, now *turns) error {
	next, err := d.write.render(m, m.Held.Join, does)
	if err == nil && next.Start != m.Held.Start {
		next, err = d.write.render(m, d.rejoin(m), does)
	}
	if err != nil {
		return err
	}
	d.out.Waiting[m.Name] = busy(m)
	if does.task != nil && m.up() {
		d.out.Waiting[m.Name] = "is told to " + does.task.what
	}
	starts := next.Start != m.Held.Start
	if next.Changed = starts || m.Held.Changed; !starts {
		d.out.Instructions[m.Name] = next
		return nil
	}
	if why := d.mayChange(m, now); why != "" {
		d.out.Waiting[m.Name] = "waits for " + why + ", to be changed"
		return nil
	}
	d.out.Instructions[m.Name] = next
	d.out.Waiting[m.Name] = "is changed"
	if m.server() {
		now.changing = m.Name
	} else {
		now.unavailable++
	}
	return nil
}

// rejoin returns the URL that a host uses to find the cluster after a restart. If the server through which a host
// joined is gone, the host needs a new URL. An etcd member does not, because it finds the other servers through etcd.
func (d *decision) rejoin(m *member) string {
	known := func(s *member) bool { return s.Address != "" && d.write.joinURL(s) == m.Held.Join }
	if m.is(provisionv1.RoleEtcd) || slices.ContainsFunc(d.stay, known) {
		return m.Held.Join
	}
	url, _ := d.wayIn(m)
	return cmp.Or(url, m.Held.Join)
}

// mayChange returns the reason why a host cannot be restarted yet, or "" if it can be restarted now. A connected host
// that is not working does not have to wait for other hosts.
func (d *decision) mayChange(m *member, now *turns) (why string) {
	switch {
	case !m.Connected:
		return "its agent, which is not connected"
	case m.server() && d.task != nil && d.task.calm:
		return fmt.Sprintf("server %s to %s", d.task.host, d.task.what)
	case m.server() && now.changing != "" && now.changing != m.Name:
		return fmt.Sprintf("server %s: servers are changed one at a time; if it will not come back, delete its Host", now.changing)
	case !m.working():
		return ""
	case m.server() && d.broken(m) != "":
		return fmt.Sprintf("server %s: this change has broken it, and no other server is changed before that is repaired, "+
			"or the spec is changed back", d.broken(m))
	case m.is(provisionv1.RoleControlPlane) && d.out.stuck:
		return "" // briefly losing quorum is better than having no server that can remove dead members
	case m.is(provisionv1.RoleEtcd) && !d.canSpareOne():
		return "the other servers with etcd to be up: without it etcd would have no quorum"
	case m.server():
		return ""
	}
	if m.Held.Version != d.Spec.Version {
		if server := d.behind(); server != "" {
			return fmt.Sprintf("server %s to have version %s: no worker is newer than a server", server, d.Spec.Version)
		}
	}
	if now.unavailable >= int(max(d.Spec.MaxUnavailable, 1)) {
		return fmt.Sprintf("other workers: at most %d are changed at a time", max(d.Spec.MaxUnavailable, 1))
	}
	return ""
}
