// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baselines

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Revisions of the Baselines in these tests, from the oldest to the newest.
const (
	oldest = "1111111111111111"
	older  = "2222222222222222"
	newest = "3333333333333333"
)

// broken returns a Baseline whose newest revision has failed in the member "bad". The member "gone" is not connected.
func broken(workspace string) *v1.Baseline {
	b := &v1.Baseline{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "flux", Generation: 1}}
	b.Spec.ClusterSelector, b.Spec.RoleTemplateName = &metav1.LabelSelector{}, "flux-role"
	b.Spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 1, Waves: []v1.Wave{{Name: "canary"}}}
	b.Spec.Manifests = []v1.Manifest{{RawExtension: runtime.RawExtension{
		Raw: []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"flux-system"}}`)}}}
	at := metav1.NewTime(time.Date(2027, 1, 2, 3, 4, 0, 0, time.UTC))
	b.Status = v1.BaselineStatus{
		DeliveryStatus: v1.DeliveryStatus{
			ObservedGeneration: 1, Clusters: &v1.ClusterCount{Desired: 4, Applied: 2, Failed: 1, Summary: "2/4"},
			Failures: []v1.Failure{{Cluster: "bad", Object: "Deployment flux-system/source", Message: "it is not available"}},
		},
		Revision: newest, CompleteRevision: older, Objects: 7,
		Waves: []v1.WaveStatus{{Name: "canary", Clusters: v1.PlanCount{Total: 4, Complete: 2, Failed: 1, Summary: "2/4"}}},
		History: []v1.BaselineRevision{{Revision: newest, RoleTemplateName: "flux-role", Since: at, Objects: 7},
			{Revision: older, RoleTemplateName: "flux-role", Since: at, Objects: 6},
			{Revision: oldest, RoleTemplateName: "wide-role", Since: at, Objects: 5}},
	}
	for _, c := range []metav1.Condition{
		{Type: v1.ConditionReady, Status: metav1.ConditionFalse}, {Type: v1.ConditionStalled, Status: metav1.ConditionTrue},
	} {
		c.Reason, c.Message, c.LastTransitionTime = v1.ReasonTooManyFailures, "1 cluster failed", at
		b.Status.Conditions = append(b.Status.Conditions, c)
	}
	return b
}

func cluster(workspace, name string, connected metav1.ConditionStatus) v1.Cluster {
	c := v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name}}
	if connected != "" {
		c.Status.Conditions = []metav1.Condition{{Type: v1.ConditionConnected, Status: connected, Reason: "Test",
			Message: "the agent is away", LastTransitionTime: metav1.Now()}}
	}
	return c
}

func TestARollbackChoosesTheLastRevisionThatWasHealthy(t *testing.T) {
	ready := func(reason string) func(*v1.Baseline) {
		return func(b *v1.Baseline) { b.Status.Conditions[0].Reason = reason }
	}
	for name, tt := range map[string]struct {
		change func(*v1.Baseline)
		flags  rollback
		want   string
		fails  string
	}{
		"a failed revision goes back to the complete one": {nil, rollback{}, older, ""},
		"a complete revision goes back to the one before": {
			func(b *v1.Baseline) { b.Status.CompleteRevision = newest }, rollback{}, older, ""},
		"a complete revision that is no longer in the history is kept": {
			func(b *v1.Baseline) { b.Status.History = b.Status.History[:1] }, rollback{}, older, ""},
		"without a complete one, it goes back to the one before": {
			func(b *v1.Baseline) { b.Status.CompleteRevision = "" }, rollback{}, older, ""},
		"--to chooses":                {nil, rollback{to: oldest}, oldest, ""},
		"--to needs a known revision": {nil, rollback{to: "ffff"}, "", "does not keep revision ffff"},
		"--undo removes the revision": {func(b *v1.Baseline) { b.Spec.Revision = older }, rollback{undo: true}, "", ""},
		"a Baseline that is rolled back needs a choice": {
			func(b *v1.Baseline) { b.Spec.Revision = older }, rollback{}, "", "undo it with --undo"},
		"a change that the hub has not looked at needs a choice": {
			func(b *v1.Baseline) { b.Generation = 2 }, rollback{}, "", "not looked at the last change"},
		"objects that cannot be read need a choice": {
			ready(v1.ReasonInvalidManifests), rollback{}, "", "members keep revision " + newest},
		"a missing source needs a choice": {
			ready(v1.ReasonSourceNotFound), rollback{}, "", "members keep revision " + newest},
		"one revision is not enough": {func(b *v1.Baseline) {
			b.Status.CompleteRevision, b.Status.History = newest, b.Status.History[:1]
		}, rollback{}, "", "keeps no earlier revision"},
	} {
		b := broken("team-a")
		if tt.change != nil {
			tt.change(b)
		}
		got, err := tt.flags.target(b)
		if got != tt.want || (err != nil) != (tt.fails != "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
			t.Errorf("%s: got %q and the error %v, want %q and %q", name, got, err, tt.want, tt.fails)
		}
	}
}

func TestARollbackUsesTheRoleTemplateOfTheRevision(t *testing.T) {
	b := broken("team-a")
	b.Spec.RoleTemplateName = "narrow-role"
	b.Status.History[1].RoleTemplateName = "" // stored by an older hub
	for revision, want := range map[string]string{
		newest: "flux-role", older: "narrow-role", oldest: "wide-role", "": "narrow-role", "ffff": "narrow-role",
	} {
		if got := roleOf(b, revision); got != want {
			t.Errorf("revision %q is applied with the role template %s, want %s", revision, got, want)
		}
	}
}

func TestMembersHaveTheStateThatTheCountsProve(t *testing.T) {
	fleet := []v1.Cluster{cluster("", "a", "True"), cluster("", "b", "True"), cluster("", "bad", "True"),
		cluster("", "gone", "False")}
	for name, tt := range map[string]struct {
		count    v1.ClusterCount
		clusters []v1.Cluster
		want     string
	}{
		"all others are applied": {v1.ClusterCount{Desired: 4, Applied: 3, Failed: 1}, fleet,
			"bad failed, gone away, a applied, b applied"},
		"the member that is away can be among those that have applied": {
			v1.ClusterCount{Desired: 4, Applied: 2, Failed: 1}, fleet, "bad failed, gone away, a other, b other"},
		"a member that has never joined is not among them": {v1.ClusterCount{Desired: 4, Applied: 2, Failed: 1},
			append(slices.Clone(fleet[:3]), cluster("", "new", "")), "bad failed, new away, a applied, b applied"},
		"none is applied": {v1.ClusterCount{Desired: 4, Failed: 1}, fleet,
			"bad failed, gone away, a working, b working"},
		"the count names no member": {v1.ClusterCount{Desired: 4, Applied: 1, Failed: 1}, fleet,
			"bad failed, gone away, a other, b other"},
		"not all failures are listed": {v1.ClusterCount{Desired: 4, Failed: 3}, fleet,
			"bad failed, gone away, a other, b other"},
		"a member has never joined": {v1.ClusterCount{Desired: 1}, []v1.Cluster{cluster("", "new", "")},
			"bad failed, new away"},
		"the user may list no Clusters": {v1.ClusterCount{Desired: 4, Applied: 2, Failed: 1}, nil, "bad failed"},
	} {
		b := broken("")
		b.Status.Clusters = &tt.count
		var got []string
		for _, m := range decide(b, tt.clusters).Members {
			got = append(got, m.Cluster+" "+m.State)
		}
		if strings.Join(got, ", ") != tt.want {
			t.Errorf("%s: got %v, want %s", name, got, tt.want)
		}
	}
}

// CVE-2021-25313, CVE-2023-32192, CVE-2024-52281: text from other people is shown to users with more rights.
func TestBaselinesPrintNoControlCharacters(t *testing.T) {
	const evil = "\x1b]0;x\a\x1b[2J\r\n\u202e\u009b"
	b := broken("team-a")
	b.Name, b.Spec.RoleTemplateName, b.Spec.Revision, b.Status.Revision = evil, evil, evil, evil
	b.Status.Failures[0] = v1.Failure{Cluster: evil, Object: evil, Message: evil}
	b.Status.Waves[0].Name, b.Status.Waves[0].Clusters.Summary, b.Status.Clusters.Summary = evil, evil, evil
	b.Status.History[0].Revision, b.Status.History[0].RoleTemplateName, b.Status.CompleteRevision = evil, evil, oldest
	b.Status.Conditions[0].Reason, b.Status.Conditions[0].Message = evil, evil
	c := cluster("team-a", evil, "False")
	c.Status.Conditions[0].Message = evil
	b.Spec.Paused = true
	shown := decide(b, []v1.Cluster{c})
	shown.Unread = evil
	for name, text := range map[string]string{
		"list":   baselineList{Baselines: []baselineRow{rowOf(b)}}.Wide(),
		"status": shown.Wide(), "history": revisionsOf(b).Text(),
	} {
		lines := strings.Count(text, "\n")
		if strings.ContainsAny(text, "\x1b\a\r\u202e\u009b") || name == "list" && lines != 2 ||
			name == "history" && lines != 4 {
			t.Errorf("%s: %q, want no control characters and no further lines", name, text)
		}
	}
}

// fixture is a workspace with Clusters and a Baseline.
type fixture struct {
	*testkit.Env
	t          *testing.T
	workspace  string
	kubeconfig string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Env: testkit.Shared(t), t: t}
	f.workspace = f.Workspace(t)
	f.kubeconfig = testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: f.workspace, Env: f.Env})
	fleet := map[string]metav1.ConditionStatus{"a": "True", "b": "True", "bad": "True", "gone": "False"}
	for name, connected := range fleet {
		c := cluster(f.workspace, name, connected)
		f.Apply(t, &v1.Cluster{ObjectMeta: c.ObjectMeta})
		f.writeStatus(&v1.Cluster{ObjectMeta: c.ObjectMeta}, func(o client.Object) { o.(*v1.Cluster).Status = c.Status })
	}
	b := broken(f.workspace)
	f.Apply(t, &v1.Baseline{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name}, Spec: b.Spec})
	f.writeStatus(&v1.Baseline{ObjectMeta: b.ObjectMeta}, func(o client.Object) { o.(*v1.Baseline).Status = b.Status })
	return f
}

func (f *fixture) writeStatus(o client.Object, change func(client.Object)) {
	f.t.Helper()
	if err := f.Client.Get(f.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		f.t.Fatal(err)
	}
	change(o)
	if err := f.Client.Status().Update(f.t.Context(), o); err != nil {
		f.t.Fatal(err)
	}
}

// run runs "kubectl drover baseline" with arguments. It returns the exit code and the output.
func (f *fixture) run(args ...string) (int, string) {
	f.t.Helper()
	var out strings.Builder
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{New(o)} }
	code := cli.Run(f.t.Context(), "test", commands, append([]string{"--kubeconfig", f.kubeconfig}, args...), &out, &out)
	return code, out.String()
}

func (f *fixture) read() *v1.Baseline {
	f.t.Helper()
	b := &v1.Baseline{}
	if err := f.Client.Get(f.t.Context(), client.ObjectKey{Namespace: f.workspace, Name: "flux"}, b); err != nil {
		f.t.Fatal(err)
	}
	return b
}

func TestBaselineCommandsShowStateAndHistory(t *testing.T) {
	f := newFixture(t)
	for line, tt := range map[string]struct {
		code int
		want []string
	}{
		"list":         {0, []string{"REVISION", "flux-role   2/4        False   TooManyFailures   " + newest}},
		"list -o wide": {0, []string{"MESSAGE", "7         1        1 cluster failed"}},
		"list -o name": {0, []string{"flux\n"}},
		"status flux": {1, []string{"TooManyFailures: 1 cluster failed", "clusters   4: 2 applied, 1 failed, 1 unfinished\n",
			"wave       canary: 2/4, 1 failed\n", "complete   " + older,
			"bad       failed   Deployment flux-system/source   it is not available\n", "gone      away"}},
		"status flux -o wide":                       {1, []string{"\na         other\n"}},
		"status flux -o json":                       {1, []string{`"stalled": true`, `"cluster": "gone",`}},
		"status flux -o yaml":                       {1, []string{"stalled: true\n"}},
		"status flux -o jsonpath={.states.applied}": {1, []string{"2"}},
		"status other": {2, []string{"read baseline " + f.workspace + "/other",
			"use another workspace with -w"}},
		"history flux": {0, []string{newest + "   flux-role   2027-01-02 03:04 UTC   7         current   2/4\n",
			"complete\n"}},
		"history flux -o name":             {0, []string{newest + "\n" + older + "\n" + oldest + "\n"}},
		"history flux -o json":             {0, []string{`"since": "2027-01-02T03:04:00Z"`}},
		"__complete baseline status f":     {0, []string{"flux\n"}},
		"__complete baseline rollb":        {0, []string{"rollback"}},
		"status flux -o table":             {2, []string{"unknown output format"}},
		"list -w kube-public -o name":      {0, []string{"has none of these objects"}},
		"rollback flux --to 1 --undo":      {2, []string{"--to and --undo cannot be combined"}},
		"rollback nosuch --yes":            {2, []string{"read baseline " + f.workspace + "/nosuch"}},
		"__complete baseline history flux": {0, []string{"flux"}},
	} {
		args := strings.Fields(line)
		if args[0] != cobra.ShellCompRequestCmd {
			args = append([]string{"baseline"}, args...)
		}
		code, out := f.run(args...)
		for _, want := range tt.want {
			if code != tt.code || !strings.Contains(out, want) {
				t.Errorf("%s: exit code %d: %s, want %d and %q", line, code, out, tt.code, want)
			}
		}
	}
}

func TestABaselineIsRolledBackAndFollowsItsManifestsAgain(t *testing.T) {
	f := newFixture(t)
	step := func(line, revision string, code int, want string) {
		t.Helper()
		got, out := f.run(append([]string{"baseline"}, strings.Fields(line)...)...)
		if got != code || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d: %s, want %d and %q", line, got, out, code, want)
		}
		if is := f.read().Spec; is.Revision != revision || len(is.Manifests) != 1 {
			t.Errorf("%s: revision is %q with %d manifests, want %q and 1", line, is.Revision, len(is.Manifests), revision)
		}
	}
	step("rollback flux", "", cli.ExitError, "have 4 members keep revision "+older+" of baseline")
	step("rollback flux --dry-run=client -o yaml", "", cli.ExitAllowed, "revision: \""+older+"\"")
	step("rollback flux --dry-run=server --yes", "", cli.ExitAllowed, "(server dry run)")
	step("rollback flux --yes", older, cli.ExitAllowed, "baseline.cluster.drover.dev/flux rolled back to revision "+older)
	step("rollback flux --yes", older, cli.ExitError, "undo it with --undo")
	step("rollback flux --to "+older, older, cli.ExitAllowed, "unchanged")
	step("rollback flux --to "+oldest+" --yes", oldest, cli.ExitAllowed, "rolled back to revision "+oldest)
	if role := f.read().Spec.RoleTemplateName; role != "wide-role" {
		t.Errorf("roleTemplateName is %s after a rollback to a revision of wide-role, want wide-role", role)
	}
	step("rollback flux --undo --yes", "", cli.ExitAllowed, "follows its manifests again")
	step("rollback flux --undo", "", cli.ExitAllowed, "unchanged")
	code, out := f.run("__complete", "baseline", "rollback", "flux", "--to", "2")
	if code != 0 || !strings.Contains(out, older+"\n") {
		t.Errorf("completion of --to: exit code %d: %s, want %s", code, out, older)
	}
}

func TestABaselineIsPausedAndResumed(t *testing.T) {
	f := newFixture(t)
	for _, tt := range []struct {
		line   string
		paused bool
		want   string
	}{
		{"pause flux --dry-run=client -o yaml", false, "paused: true"},
		{"pause flux", true, "baseline.cluster.drover.dev/flux paused\n"},
		{"status flux", true, "kubectl drover baseline resume flux"},
		{"resume flux", false, "baseline.cluster.drover.dev/flux resumed\n"},
	} {
		_, out := f.run(append([]string{"baseline"}, strings.Fields(tt.line)...)...)
		is := f.read().Spec.Paused
		if is != tt.paused || !strings.Contains(out, tt.want) || strings.Contains(out, "Warning") {
			t.Errorf("%s: paused is %v: %s, want %v and %q", tt.line, is, out, tt.paused, tt.want)
		}
	}
	b := f.read()
	b.Spec.Rollout = nil
	if err := f.Client.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if _, out := f.run("baseline", "pause", "flux"); !strings.Contains(out, "has no rollout") {
		t.Errorf("a Baseline without a rollout is paused: %s, want a warning", out)
	}
}

func TestBaselinesAreListedInPages(t *testing.T) {
	f := newFixture(t)
	for i := range pageSize + 1 {
		b := broken(f.workspace)
		b.Name = fmt.Sprintf("more-%d", i)
		f.Apply(t, &v1.Baseline{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name}, Spec: b.Spec})
	}
	if code, out := f.run("baseline", "list", "-o", "name"); code != 0 || strings.Count(out, "\n") != pageSize+2 {
		t.Errorf("exit code %d: %s, want %d names", code, out, pageSize+2)
	}
}

func TestAWaveOfABaselineIsApproved(t *testing.T) {
	f := newFixture(t)
	b := f.read()
	b.Spec.Rollout.Waves = []v1.Wave{{Name: "canary"}, {Name: "prod", Approval: v1.ApprovalRequired}}
	if err := f.Client.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	revision := strings.Repeat("0123456789abcdef", 4)[:56]
	for _, tt := range []struct {
		line, want string
		code       int
		approved   bool
	}{
		{"approve flux --yes", "Drover has not looked at the change yet", cli.ExitError, false},
		{"approve flux", "approve wave prod of baseline " + f.workspace + "/flux: keep the 7 objects of revision " + newest +
			", with the rights of role template flux-role, on ", cli.ExitError, false},
		{"approve flux --wave canary --yes", `no wave "canary" that requires approval: use one of prod`,
			cli.ExitError, false},
		{"approve flux --dry-run=client -o yaml --approved-by flux", "approvals:\n  - approvedBy: flux\n    revision: " +
			revision + "\n    wave: prod", cli.ExitAllowed, false},
		{"approve flux --wave prod --yes", "baseline.cluster.drover.dev/flux approved for wave prod\n",
			cli.ExitAllowed, true},
	} {
		code, out := f.run(append([]string{"baseline"}, strings.Fields(tt.line)...)...)
		is := f.read().Spec.Approvals
		if code != tt.code || !strings.Contains(out, tt.want) || (len(is) == 1 && is[0].Wave == "prod" &&
			is[0].Revision == revision && is[0].ApprovedBy != "") != tt.approved {
			t.Errorf("%s: exit code %d, approvals %+v: %s, want %d, an approval: %v, and %q", tt.line, code, is, out, tt.code,
				tt.approved, tt.want)
		}
		f.writeStatus(f.read(), func(o client.Object) {
			b := o.(*v1.Baseline)
			b.Status.ObservedGeneration = b.Generation
			b.Status.Waves = []v1.WaveStatus{{Name: "canary"}, {Name: "prod", Approval: &v1.WaveApproval{Revision: revision}}}
		})
	}
}
