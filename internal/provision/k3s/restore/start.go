// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"fmt"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// StartAgain restarts a server that was stopped for a restore. Servers whose data was not replaced start at the same
// time, because no server comes up without quorum. Servers whose data was replaced join one at a time.
func StartAgain(d *decision.Draft, m *roster.Member) error {
	url, why := m.Held.Join, ""
	switch {
	case !m.Connected:
		why = "its agent, which is not connected"
	case m.Held.Restores != "" && m.Held.Restores == d.Roster.Stored.Epoch: // the others join this host
		url = ""
	case m.Held.Epoch != d.Roster.Stored.Epoch:
		url, why = wayBack(d, m)
	}
	if why != "" {
		d.Out.Waiting[m.Name] = "waits for " + why
		return nil
	}
	anew := m.Is(provisionv1.RoleEtcd) && m.Held.Epoch != d.Roster.Stored.Epoch
	if anew {
		d.Joining = m.Name
	}
	d.Out.Waiting[m.Name] = "is started again"
	err := d.Give(m, url)
	if err == nil {
		again := m.Is(provisionv1.RoleEtcd) && (anew || m.Held.Rejoins) // the host is not an etcd member until it joins
		d.Out.Instructions[m.Name].Changed = url == "" || !again
	}
	return err
}

// wayBack returns the URL through which a server joins the restored cluster, or the reason why the server must wait.
func wayBack(d *decision.Draft, m *roster.Member) (url, why string) {
	for _, s := range d.Roster.Ordered() {
		if !s.Is(provisionv1.RoleEtcd) || s.Held == nil || d.Roster.WaitsToStart(s) {
			continue
		}
		if m.Is(provisionv1.RoleEtcd) && s.Connected && s.State.Busy() {
			d.Joining = cmp.Or(d.Joining, s.Name)
		}
		if s.Up() && s.Address != "" && url == "" {
			url = d.Writer.Distribution.JoinURL(s.Address)
		}
	}
	switch {
	case url == "":
		return "", "a server with the restored data to be up"
	case m.Is(provisionv1.RoleEtcd) && d.Joining != "":
		return "", fmt.Sprintf("host %s: servers with etcd join one at a time", d.Joining)
	}
	return url, ""
}

// Resume restarts servers that are leaving the cluster, if they were stopped for a restore that replaced no data. The
// servers remain etcd members until they have left.
func Resume(d *decision.Draft, removes []distribution.Removal) error {
	for _, m := range d.Roster.Servers() {
		isRemoved := slices.ContainsFunc(removes, func(r distribution.Removal) bool { return r.Node == m.Name })
		if d.Roster.Named(m.Name) != nil || !m.Connected || !d.Roster.Resumes(&m.Host) || isRemoved {
			continue
		}
		if err := d.Give(m, m.Held.Join); err != nil {
			return err
		}
		d.Out.Instructions[m.Name].Changed = true
	}
	return nil
}
