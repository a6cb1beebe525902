// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"os/exec"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
)

func freeHost(name, rack, zone string) v1.Host {
	h := v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: map[string]string{"rack": rack, "zone": zone}}}
	h.Status.State = v1.HostAvailable
	meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonHostAvailable})
	return h
}

// asked returns a machine of a group, on a host or none.
func asked(name, deployment, host string) infrav1.DroverMachine {
	m := infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{clusterapi.LabelCluster: "c1", clusterapi.LabelDeployment: deployment}}}
	if deployment == "" {
		m.Labels[clusterapi.LabelControlPlane] = ""
	}
	if host != "" {
		m.Spec.ProviderID = "drover://team-a/" + host
	}
	m.Spec.AntiAffinity = &infrav1.AntiAffinity{TopologyKey: "rack"}
	return m
}

func TestPickChoosesAnAllowedHost(t *testing.T) {
	taken := freeHost("a0", "r1", "z1")
	taken.Spec.ConsumerRef = &v1.HostConsumerRef{Kind: "Cluster", Name: "other"}
	all := []v1.Host{freeHost("c", "r2", "z2"), freeHost("b", "r1", "z2"), freeHost("a", "r1", "z1"), freeHost("d", "", "z3"), taken}
	for name, c := range map[string]struct {
		change        func(*infrav1.DroverMachine)
		label, domain string
		others        []infrav1.DroverMachine
		want, why     string
	}{
		"the first by name":                       {want: "a"},
		"of the failure domain":                   {label: "zone", domain: "z2", want: "b"},
		"of no failure domain without a label":    {domain: "z2", want: "a"},
		"none in that failure domain":             {label: "zone", domain: "z9", why: "4 are in another failure domain"},
		"not beside one of its group":             {others: []infrav1.DroverMachine{asked("n", "", "a")}, want: "c"},
		"beside one of another group":             {others: []infrav1.DroverMachine{asked("n", "workers", "a")}, want: "b"},
		"not on one that another is about to get": {others: []infrav1.DroverMachine{asked("n", "workers", "a"), asked("o", "workers", "b")}, want: "c"},
		"none is far enough":                      {others: []infrav1.DroverMachine{asked("n", "", "a"), asked("o", "", "c")}, why: "2 are too close"},
		"its own provider ID does not count":      {others: []infrav1.DroverMachine{asked("m", "", "a")}, want: "a"},
		"without the rule, in the same rack": {
			change: func(m *infrav1.DroverMachine) { m.Spec.AntiAffinity = nil }, others: []infrav1.DroverMachine{asked("n", "", "a")}, want: "b",
		},
		"by labels": {change: func(m *infrav1.DroverMachine) {
			m.Spec.HostSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "r2"}}
		}, want: "c"},
		"by a selector that is not valid": {change: func(m *infrav1.DroverMachine) {
			m.Spec.HostSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: "Near"}}}
		}, why: "hostSelector is not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			m := asked("m", "", "")
			if c.change != nil {
				c.change(&m)
			}
			got, why := pick(wanted{&m, c.label, c.domain}, all, c.others)
			if (got == nil) != (c.want == "") || got != nil && got.Name != c.want || !strings.Contains(why, c.why) {
				t.Errorf("got %+v because %q, want %q because %q", got, why, c.want, c.why)
			}
		})
	}
}

func TestProviderIDMustBeASeparateWord(t *testing.T) {
	host := freeHost("rack1", "", "")
	for text, want := range map[string]bool{
		"provider-id: drover://team-a/rack1\n": true, "--provider-id=drover://team-a/rack1": true, "drover://team-a/rack1": true, "'drover://team-a/rack1' x": true,
		"drover://team-a/rack10": false, "drover://team-a/rack1-b": false, "drover://team-a/rack10 drover://team-a/rack1": true, "": false,
	} {
		_, err := makeInstructions(bootstrapInput{uid: "u", host: &host, data: []byte("#cloud-config\nruncmd: [\"echo " + strings.TrimSpace(text) + "\"]\n")})
		if (err == nil) != want {
			t.Errorf("%q: %v, want it taken: %t", text, err, want)
		}
	}
}

func TestBootstrapReceivesTheKubernetesVersion(t *testing.T) {
	t.Parallel()
	host := freeHost("rack1", "", "")
	for version, want := range map[string]string{
		"v1.36.3": "v1.36.3", "v1.36.0-rc.1": "v1.36.0-rc.1", "v1.36.3+rke2r1": "v1.36.3+rke2r1", "": "none", "latest": "none", "v1.36.3; reboot": "none", "v1.36.3-$(reboot)": "none", "1.36.3": "none",
	} {
		given, err := makeInstructions(bootstrapInput{uid: "u", host: &host, version: version, data: []byte("#cloud-config\nruncmd: [\"echo drover://team-a/rack1 ${KUBERNETES_VERSION:-none}\"]\n")})
		if err != nil {
			t.Fatal(err)
		}
		script := strings.Replace(string(given.Files[0].Content), "/run/cluster-api", t.TempDir(), 1)
		command := exec.CommandContext(t.Context(), "sh", "-c", script)
		command.Env = []string{"PATH=/usr/bin:/bin"}
		if out, err := command.CombinedOutput(); err != nil || string(out) != "drover://team-a/rack1 "+want+"\n" {
			t.Errorf("of %q the commands see %q (%v), want %s", version, out, err, want)
		}
	}
}

func TestInternalAddressOfAHostComesFirst(t *testing.T) {
	t.Parallel()
	machine := &v1.HostMachine{HostProperties: v1.HostProperties{
		Hostname: "box", Addresses: []string{"10.0.2.15", "192.168.56.11", "no address"},
	}}
	for address, want := range map[string]string{
		"":              "box 10.0.2.15 192.168.56.11",
		"192.168.56.11": "box 192.168.56.11 10.0.2.15",
		"192.0.2.1":     "box 192.0.2.1 10.0.2.15 192.168.56.11",
	} {
		var got []string
		for _, a := range addresses(&v1.Host{Spec: v1.HostSpec{InternalAddress: address}, Status: v1.HostStatus{Machine: machine}}) {
			got = append(got, a.Address)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("with the address %q: %v, want %s", address, got, want)
		}
	}
}
