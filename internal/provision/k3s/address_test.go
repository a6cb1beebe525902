// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"testing"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// A machine's reports must not determine where other machines join, because they send the cluster's token to that
// address.
func TestReportedAddressDoesNotChangeWhereHostsJoin(t *testing.T) {
	t.Parallel()
	server, worker := pool("server", -1, provisionv1.RoleEtcd, provisionv1.RoleControlPlane), pool("worker", -1, provisionv1.RoleWorker)
	w := newWorld(t, 1, server, worker)
	w.add("server", 1)
	w.settle(200)
	first := w.machines["m0001"]
	if first.Held == nil || first.State != progress.Up {
		t.Fatalf("the server is %+v, want it up", first.Host)
	}
	joins := func(want string) {
		t.Helper()
		w.add("worker", 1)
		w.settle(200)
		name := w.names()[len(w.machines)-1]
		if held := w.machines[name].Held; held == nil || held.Join != want {
			t.Errorf("%s joins by %+v, want %s", name, held, want)
		}
	}
	joins("https://10.0.0.1:6443")
	first.Address = "203.0.113.9"
	joins("https://10.0.0.1:6443")
	first.Address, first.NodeIPs = "192.0.2.1", []string{"192.0.2.1"} // as spec.internalAddress of its Host says
	joins("https://192.0.2.1:6443")
	first.Address, first.NodeIPs = "203.0.113.9", nil
	joins("https://10.0.0.1:6443")
	t.Run("another machine with another Host of the name is another node", func(t *testing.T) {
		in := roster.Input{Hosts: []roster.Host{{Name: "m1", UID: "second", Address: "10.0.0.2"}}}
		in.Stored.Nodes = map[string]roster.Node{"m1": {UID: "first", Address: "10.0.0.1"}}
		if d := roster.New(in); d.Hosts[0].Address != "10.0.0.2" || d.Stored.Nodes["m1"].Address != "10.0.0.1" {
			t.Errorf("the address is %s, stored %+v, want that of the new machine, and what is stored of the former node as it was", d.Hosts[0].Address, d.Stored.Nodes)
		}
	})
}
