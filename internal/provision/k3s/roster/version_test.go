// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package roster

import (
	"strings"
	"testing"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

func TestVersionRisesByOneMinorVersionAtMost(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		want    string
		roles   string
		state   progress.State
		gone    bool
		refused string
	}{
		"a patch release":                              {"v1.35.9+k3s1", "control-plane,etcd", progress.Up, false, ""},
		"an older patch release":                       {"v1.35.1+k3s1", "control-plane,etcd", progress.Up, false, ""},
		"the next minor version":                       {"v1.36.0+k3s1", "control-plane,etcd", progress.Up, false, ""},
		"two minor versions":                           {"v1.37.0+k3s1", "control-plane,etcd", progress.Up, false, "more than one minor version above the v1.35.3+k3s1 of server s1"},
		"two minor versions of a worker":               {"v1.37.0+k3s1", "worker", progress.Up, false, ""},
		"two minor versions of a server that is gone":  {"v1.37.0+k3s1", "etcd", progress.Up, true, ""},
		"a minor version back":                         {"v1.34.9+k3s1", "control-plane", progress.Up, false, "Kubernetes cannot be downgraded"},
		"back from one that could not be installed":    {"v1.34.9+k3s1", "control-plane", progress.Failed, false, ""},
		"a minor version back, where data is replaced": {"v1.34.9+k3s1", "control-plane,etcd", progress.Up, false, ""},
	} {
		in := Input{Hosts: []Host{
			{Name: "free", Held: &Held{Version: "v1.20.0+k3s1", Roles: "etcd"}},
			{Name: "new", Taken: true},
			{Name: "s1", Taken: true, Gone: tt.gone, Host: progress.Host{State: tt.state}, Held: &Held{Version: "v1.35.3+k3s1", Roles: tt.roles}},
		}}
		in.Spec.ClusterInstallationSpec = provisionv1.ClusterInstallationSpec{Version: tt.want}
		if strings.Contains(name, "replaced") {
			in.Hosts[2].Held.Stopped, in.Stored.Restore = "r", &Restoring{Step: StepRestore}
		}
		err := CheckVersion(in)
		if (err != nil) != (tt.refused != "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%s: %v, want %q", name, err, tt.refused)
		}
	}
}
