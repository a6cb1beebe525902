// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestChecksApplyToVersionsOfKubernetes(t *testing.T) {
	for version, want := range map[string]bool{
		"v1.36.3": true, "1.36.3": true, "v1.36.3+k3s1": true, "v1.36.3-k3s1": true, "v1.37.0-rc.1+rke2r1": true,
		"2026.1": false, "2026.1.3": false, "v1.36": true, "1.36": true, "1.36.": false, "1.7": false, "1.7.27": false,
		"v2.1.0": false, "latest": false, "": false,
		"v1.4294967296.0": false, "v1.36.3.": false,
	} {
		if _, got := TargetOf(&v1.Plan{}, version); got != want || Applies(version) != want {
			t.Errorf("%q: the checks apply: %v, want %v", version, got, want)
		}
	}
}

// healthy returns the facts of a cluster with a control plane and two workers that can be upgraded to 1.36.
func healthy() *Facts {
	node := func(name string, controlPlane bool) Node {
		return Node{Name: name, Selected: true, ControlPlane: controlPlane, Ready: true, Kubelet: "v1.35.2",
			Allocatable: Amounts{MilliCPU: 4000, Memory: 8 << 30, Pods: 110},
			Requested:   Amounts{MilliCPU: 1000, Memory: 2 << 30, Pods: 10},
			Leaving:     Amounts{MilliCPU: 500, Memory: 1 << 30, Pods: 5}}
	}
	at := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	return &Facts{
		At: at, Version: "v1.35.2", Nodes: []Node{node("cp", true), node("w1", false), node("w2", false)},
		Budgets: []Budget{{Name: "team/web", Allowed: 1, Healthy: 3, Desired: 2, Ready: 2}},
		Webhooks: []Webhook{{Configuration: "mutatingwebhookconfiguration/policy", Name: "policy.example.com",
			Service: "policy/webhook", Exists: true, Endpoints: 2}},
		Requested:          []API{{Group: "networking.k8s.io", Version: "v1beta1", Resource: "ipaddresses", Removed: "1.37"}},
		CertificateIssued:  at.AddDate(0, -6, 0),
		CertificateExpires: at.AddDate(0, 6, 0),
	}
}

// want describes a finding. Empty fields match any text.
type want struct{ check, object, cause, remedy string }

func TestChecks(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Facts)
		target string // 1.36.3 if empty
		want   []want
	}{
		"a healthy cluster is safe to upgrade":   {},
		"a cluster that has the version already": {change: func(f *Facts) { f.Version = "v1.36.1" }},
		"the next minor version with a suffix":   {target: "v1.36.3+k3s1"},
		"a skipped minor version": {
			change: func(f *Facts) {
				f.Version = "v1.33.4+k3s1"
				for i := range f.Nodes {
					f.Nodes[i].Kubelet = "v1.33.4+k3s1"
				}
			},
			want: []want{{CheckKubernetesVersion, "kube-apiserver",
				"an upgrade from v1.33.4+k3s1 to v1.36.3 skips 2 minor versions", "upgrade to 1.34 first"}},
		},
		"a downgrade": {
			target: "v1.34.1",
			want: []want{{CheckKubernetesVersion, "kube-apiserver", "v1.34.1 is a downgrade",
				"set the version to 1.35 or later"}},
		},
		"workers that stay older than the API server": {
			change: func(f *Facts) {
				f.Version, f.Nodes[0].Selected, f.Nodes[0].Kubelet = "v1.36.3", false, "v1.36.3"
				f.Nodes[1].Kubelet, f.Nodes[2].Kubelet = "v1.33.1", "v1.34.1"
			},
			target: "v1.35.1",
		},
		"workers before the control plane": {
			change: func(f *Facts) { f.Nodes[0].Selected, f.Nodes[2].Selected = false, false },
			want: []want{{CheckKubeletVersion, "node/w1", "would run v1.36.3, which is newer than the API server's v1.35.2",
				"upgrade the control plane first"}},
		},
		"a kubelet that the new version does not support": {
			change: func(f *Facts) { f.Nodes[1].Kubelet, f.Nodes[1].Selected = "v1.32.9", false },
			want: []want{{CheckKubeletVersion, "node/w1", "runs v1.32.9, and Kubernetes 1.36 supports kubelets from 1.33",
				"upgrade this kubelet to 1.33 first"}},
		},
		"a kubelet that the new version just supports": {change: func(f *Facts) { f.Nodes[1].Kubelet = "v1.33.0" }},
		"a kubelet that has never reported": {
			change: func(f *Facts) { f.Nodes[1].Kubelet, f.Nodes[1].Ready = "", false },
			want:   []want{{CheckNodesReady, "node/w1", "it is not ready", ""}},
		},
		"a kubelet of an unknown version": {
			change: func(f *Facts) { f.Nodes[1].Kubelet = "unknown" },
			want:   []want{{CheckKubeletVersion, "node/w1", "not checked: the kubelet's version is", ""}},
		},
		"an API server without a version": {
			change: func(f *Facts) { f.Version = "unknown" },
			want:   []want{{CheckKubernetesVersion, "kube-apiserver", `not checked: "unknown" is not a version`, ""}},
		},
		"workers of a control plane of which one node still runs the old version": {
			change: func(f *Facts) {
				f.Version = "v1.36.3"
				f.Nodes = append(f.Nodes, Node{Name: "cp2", ControlPlane: true, Ready: true, Kubelet: "v1.36.3"})
				f.Nodes[0].Selected, f.Nodes[2].Selected = false, false
			},
			want: []want{{CheckKubeletVersion, "node/w1", "newer than the API server's v1.35.2 on node cp",
				"upgrade the control plane first"}},
		},
		"a node that is not ready": {
			change: func(f *Facts) { f.Nodes[2].Ready = false },
			want:   []want{{CheckNodesReady, "node/w2", "it is not ready", "repair the node"}},
		},
		"a node that is not ready and that the Plan does not upgrade": {
			change: func(f *Facts) { f.Nodes[2].Ready, f.Nodes[2].Selected = false, false },
			want:   []want{{CheckNodesReady, "node/w2", "it is not ready", ""}},
		},
		"one node of ten that is not ready and that the Plan does not upgrade": {
			change: func(f *Facts) {
				for i := range 7 {
					f.Nodes = append(f.Nodes, Node{Name: fmt.Sprint("more", i), Ready: i > 0, Kubelet: "v1.35.2"})
				}
			},
		},
		"a control plane that is not ready and that the Plan does not upgrade": {
			change: func(f *Facts) {
				f.Nodes[0].Ready, f.Nodes[0].Selected, f.Nodes[0].Excluded = false, false, true
			},
			target: "v1.35.2", want: []want{{CheckNodesReady, "node/cp", "it is not ready", ""}},
		},
		"a node that is not ready and that the Plan excludes": {
			change: func(f *Facts) { f.Nodes[2].Ready, f.Nodes[2].Selected, f.Nodes[2].Excluded = false, false, true },
		},
		"a virtual kubelet": {
			change: func(f *Facts) {
				f.Nodes[2] = Node{Name: "virtual", Virtual: true, Kubelet: "v1.15.2-vk", Allocatable: f.Nodes[2].Allocatable}
			},
		},
		"a budget that allows no disruption": {
			change: func(f *Facts) { f.Budgets[0] = Budget{Name: "team/web", Healthy: 1, Desired: 1, Ready: 1} },
			want: []want{{CheckDisruptionBudgets, "poddisruptionbudget/team/web",
				"the drain evicts some of its pods (1 pods to evict, 1 pods healthy, 1 required)", "add replicas"}},
		},
		"a budget without pods to evict": {
			change: func(f *Facts) { f.Budgets[0] = Budget{Name: "team/web", Healthy: 1, Desired: 1} },
		},
		"a budget with an unhealthy pod": {
			change: func(f *Facts) { f.Budgets[0] = Budget{Name: "team/web", Healthy: 1, Desired: 2, Unready: 1} },
			want:   []want{{CheckDisruptionBudgets, "poddisruptionbudget/team/web", "", "make its pods healthy"}},
		},
		"a budget with an unhealthy pod that may always be evicted": {
			change: func(f *Facts) {
				f.Budgets[0] = Budget{Name: "team/web", Healthy: 1, Desired: 2, Unready: 1, AlwaysAllow: true}
			},
		},
		"a budget with an unhealthy pod and enough healthy pods": {
			change: func(f *Facts) { f.Budgets[0] = Budget{Name: "team/web", Healthy: 2, Desired: 2, Unready: 1} },
		},
		"a pod with several budgets": {
			change: func(f *Facts) { f.Shared = "team/web-0" },
			want:   []want{{CheckDisruptionBudgets, "pod/team/web-0", "several PodDisruptionBudgets select it", "delete"}},
		},
		"a webhook without endpoints": {
			change: func(f *Facts) { f.Webhooks[0].Endpoints = 0 },
			want: []want{{CheckAdmissionWebhooks, "mutatingwebhookconfiguration/policy",
				"policy.example.com rejects requests when it cannot be called, and no endpoint of its Service policy/webhook " +
					"is ready",
				"start the webhook's pods"}},
		},
		"a webhook without a Service": {
			change: func(f *Facts) { f.Webhooks[0].Endpoints, f.Webhooks[0].Exists = 0, false },
			want:   []want{{CheckAdmissionWebhooks, "", "its Service policy/webhook does not exist", ""}},
		},
		"a removed API that clients request": {
			target: "v1.37.0", change: func(f *Facts) { f.Version = "v1.36.0" },
			want: []want{{CheckRemovedAPIs, "ipaddresses.v1beta1.networking.k8s.io", "Kubernetes 1.37 does not serve it",
				"the check passes after the API server has restarted"}},
		},
		"a deprecated API whose removal is not known": {change: func(f *Facts) { f.Requested[0].Removed = "" }},
		"a manifest with a removed API": {
			change: func(f *Facts) {
				f.Applied = []AppliedObject{{Name: "mine", Manager: "flux", API: API{
					Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta3", Resource: "flowschemas", Removed: "1.32"}}}
			},
			want: []want{{CheckRemovedAPIs, "flowschemas/mine", "flux applied it as flowcontrol.apiserver.k8s.io/v1beta3",
				"change apiVersion"}},
		},
		"pods that fit nowhere": {
			change: func(f *Facts) { f.Nodes[1].Leaving.MilliCPU, f.Nodes[1].Requested.MilliCPU = 7000, 7500 },
			want: []want{{CheckNodeCapacity, "node/w1", "they request more CPU than is free (7000m requested, 6000m free)",
				"add nodes"}},
		},
		"a pod that is larger than the free room on any other node": {
			change: func(f *Facts) { f.Nodes[1].LargestPod.MilliCPU = 3001 },
			want: []want{{CheckNodeCapacity, "node/w1",
				"cannot run one of its pods: it requests more CPU than is free (3001m requested, 3000m free)", "add nodes"}},
		},
		"nodes with another operating system have no room": {
			change: func(f *Facts) {
				f.Nodes[0].Leaving, f.Nodes[1].Leaving.MilliCPU = Amounts{}, 4000
				f.Nodes[2].OtherOS, f.Nodes[2].Selected = true, false
			},
			want: []want{{CheckNodeCapacity, "node/w1", "they request more CPU than is free (4000m requested, 3000m free)", ""}},
		},
		"pods of a cluster with one node wait for that node": {
			change: func(f *Facts) { f.Nodes = f.Nodes[:1]; f.Nodes[0].Leaving.MilliCPU = 7000 },
		},
		"pods that need more memory than is free": {
			change: func(f *Facts) { f.Nodes[1].Leaving.Memory = 12<<30 + 1 },
			want: []want{{CheckNodeCapacity, "node/w1",
				"they request more memory than is free (12289Mi requested, 12288Mi free)", ""}},
		},
		"more pods than other nodes take": {
			change: func(f *Facts) { f.Nodes[1].Leaving.Pods = 201 },
			want: []want{{CheckNodeCapacity, "node/w1",
				"they request more room for pods than is free (201 requested, 200 free)", ""}},
		},
		"cordoned nodes and the tainted control plane have no room": {
			change: func(f *Facts) {
				f.Nodes[0].Taints = []string{"node-role.kubernetes.io/control-plane"}
				f.Nodes[2].Unschedulable, f.Nodes[2].Leaving, f.Nodes[0].Leaving = true, Amounts{}, Amounts{}
			},
			want: []want{{CheckNodeCapacity, "node/w1", "they request more CPU than is free (500m requested, 0m free)", ""}},
		},
		"pods of the control plane can move to workers": {
			change: func(f *Facts) {
				f.Nodes[0].Taints = []string{"node-role.kubernetes.io/control-plane"}
				f.Nodes[1].Leaving, f.Nodes[2].Leaving = Amounts{}, Amounts{}
			},
		},
		"a node that is not selected does not count": {
			change: func(f *Facts) { f.Nodes[1].Leaving.MilliCPU, f.Nodes[1].Selected = 7000, false },
		},
		"a certificate that expires soon": {
			change: func(f *Facts) { f.CertificateExpires = f.At.AddDate(0, 0, 29) },
			want:   []want{{CheckCertificates, "kube-apiserver", "its certificate expires on 2026-12-27", "renew"}},
		},
		"a certificate that has expired": {
			change: func(f *Facts) { f.CertificateExpires = f.At.AddDate(0, 0, -1) },
			want:   []want{{CheckCertificates, "kube-apiserver", "its certificate expired on 2026-11-27", ""}},
		},
		"a certificate that is replaced often": {
			change: func(f *Facts) {
				f.CertificateIssued, f.CertificateExpires = f.At.AddDate(0, 0, -5), f.At.AddDate(0, 0, 2)
			},
		},
		"a certificate that was not replaced in time": {
			change: func(f *Facts) {
				f.CertificateIssued, f.CertificateExpires = f.At.AddDate(0, 0, -6), f.At.AddDate(0, 0, 1)
			},
			want: []want{{CheckCertificates, "kube-apiserver", "its certificate expires on 2026-11-29", "renew"}},
		},
		"a certificate that is not known": {change: func(f *Facts) { f.CertificateExpires = time.Time{} }},
		"facts that may not be read": {
			change: func(f *Facts) {
				f.Unread = []Unread{{Check: CheckRemovedAPIs, Object: "/metrics", Cause: "forbidden", Forbidden: true}}
			},
			want: []want{{CheckRemovedAPIs, "/metrics", "not checked: forbidden", "get the right to read it"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			facts := healthy()
			if tt.change != nil {
				tt.change(facts)
			}
			target := &Target{Version: "v1.36.3"}
			if tt.target != "" {
				target.Version = tt.target
			}
			compare(t, Check(facts, target), tt.want)
		})
	}
}

func compare(t *testing.T, got []Finding, wanted []want) {
	t.Helper()
	if len(got) != len(wanted) {
		t.Fatalf("got %d findings, want %d:\n%+v", len(got), len(wanted), got)
	}
	for i, w := range wanted {
		g := got[i]
		if g.Check != w.check || !strings.Contains(g.Object, w.object) ||
			!strings.Contains(g.Cause+" ("+g.Detail+")", w.cause) ||
			!strings.Contains(g.Remedy, w.remedy) || g.Unchecked != strings.HasPrefix(g.Cause, "not checked: ") {
			t.Errorf("got  %+v\nwant %+v", g, w)
		}
		if g.Object == "" || g.Cause == "" || g.Remedy == "" {
			t.Errorf("%+v has an empty text", g)
		}
	}
}

// The agent writes the texts into the status of the Plan whenever they change.
func TestOnlyTheDetailsOfFindingsChangeWithTheLoad(t *testing.T) {
	var got [2][]Finding
	for i := range got {
		n := int64(i)
		facts := healthy()
		facts.Budgets = []Budget{{Name: "team/web", Healthy: 3 + n, Desired: 3 + n, Ready: 1 + n}}
		for at := range 3 {
			facts.Nodes[at].Leaving = Amounts{MilliCPU: 9000 + n, Memory: 1<<40 + n<<30, Pods: 300 + n}
		}
		got[i] = Check(facts, &Target{Version: "v1.36.3"})
	}
	changed := false
	for i := range min(len(got[0]), len(got[1])) {
		a, b := got[0][i], got[1][i]
		changed = changed || a.Detail != b.Detail
		a.Detail, b.Detail = "", ""
		if a != b {
			t.Errorf("got %+v and %+v, want that they differ only in the detail", a, b)
		}
	}
	if len(got[0]) != 4 || len(got[1]) != 4 || !changed {
		t.Errorf("got %+v and %+v, want a budget and three nodes with other details", got[0], got[1])
	}
}

func TestAPlanWithoutAVersionOfKubernetesHasNoFindings(t *testing.T) {
	facts := healthy()
	facts.Nodes[0].Ready = false
	if got := Check(facts, &Target{Version: "2026.1"}); got != nil {
		t.Errorf("got %+v, want no findings", got)
	}
}

func TestFindingsAreBoundedAndOrdered(t *testing.T) {
	facts := healthy()
	facts.Version = "v1.30.0"
	facts.Nodes = nil
	for i := range 50 {
		name := fmt.Sprintf("%02d-%s", 49-i, strings.Repeat("ä", 2*MaxText))
		facts.Nodes = append(facts.Nodes, Node{Name: name, Kubelet: "v1.36.0"})
	}
	got := Check(facts, &Target{Version: "v1.36.3"})
	if len(got) != 1+MaxFindings {
		t.Fatalf("got %d findings, want one of the version and %d of the nodes", len(got), MaxFindings)
	}
	if got[0].Check != CheckKubernetesVersion || !strings.HasPrefix(got[1].Object, "node/00-") ||
		got[MaxFindings].Object != "and 41 more" {
		t.Errorf("got %.40q, %.40q … %.40q, want the version, the first node and a count", got[0].Object, got[1].Object,
			got[MaxFindings].Object)
	}
	for _, f := range got {
		if len(f.Object) > MaxText || len(f.Cause) > MaxText || len(f.Remedy) > MaxText {
			t.Errorf("%s has a text of more than %d bytes", f.Check, MaxText)
		}
	}
	again := slices.Clone(facts.Nodes)
	slices.Reverse(again)
	facts.Nodes = again
	if other := Check(facts, &Target{Version: "v1.36.3"}); !slices.Equal(got, other) {
		t.Error("the findings depend on the order of the nodes, want the same findings in the same order")
	}
}
