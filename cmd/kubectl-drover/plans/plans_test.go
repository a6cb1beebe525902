// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/test/testkit"
)

func goingPlan() *v1.Plan {
	now := metav1.NewTime(time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC))
	p := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Name: "k3s", Generation: 1}}
	p.Status = v1.PlanStatus{
		ObservedGeneration: 1, LatestVersion: "v2", Clusters: &v1.PlanCount{Total: 4, Complete: 1, Applying: 1}, Nodes: &v1.PlanCount{Total: 6, Complete: 4, Applying: 1},
		Conditions: []metav1.Condition{{Type: v1.ConditionComplete, Status: metav1.ConditionFalse, Reason: v1.ReasonApplying, Message: "1 cluster at work"}},
		Waves:      []v1.WaveStatus{{Name: "canary", Clusters: v1.PlanCount{Total: 1, Complete: 1, Summary: "1/1"}}, {Name: "rest", Clusters: v1.PlanCount{Total: 3, Applying: 1, Summary: "0/3"}}},
		Members:    []v1.PlanMember{{Name: "b", Wave: "rest", Since: now, Nodes: "1/3", Reason: v1.ReasonApplying}},
		Applying:   []v1.ApplyingNode{{Cluster: "b", Node: "n\x1b[31m", Stage: v1.StageDraining, Since: now, Attempt: 1}},
	}
	return p
}

func TestAMemberThatSaysItHasEveryNodeIsNotBelieved(t *testing.T) {
	c := &v1.Cluster{Status: v1.ClusterStatus{Nodes: &v1.NodeCount{Total: math.MaxInt32}}}
	if got := len(simulated(c, 0).Nodes); got != maxNodes {
		t.Errorf("%d nodes are simulated", got)
	}
}

// CVE-2021-25313, CVE-2023-32192, CVE-2024-52281: text from other people is shown to users with more rights.
func TestPlanStatusesPrintNoControlCharacters(t *testing.T) {
	const evil = "\x1b]0;x\a\x1b[2J\r\u202e\u009b"
	at := metav1.NewTime(time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC))
	count := v1.PlanCount{Total: 1, Summary: evil}
	p := &v1.Plan{Status: v1.PlanStatus{
		LatestVersion: evil, Clusters: &count, Nodes: &count, Conditions: []metav1.Condition{{Type: v1.ConditionComplete, Reason: evil, Message: evil}},
		Waves: []v1.WaveStatus{{Name: evil, Clusters: count}}, Members: []v1.PlanMember{{Name: evil, Wave: evil, Since: at, Nodes: evil, Reason: evil, Message: evil}},
		Applying: []v1.ApplyingNode{{Cluster: evil, Node: evil, Stage: v1.StageDraining, Since: at}},
		Failures: []v1.NodeFailure{{Cluster: evil, Node: evil, At: at, Reason: evil, Message: evil, Log: evil + "\n" + evil}},
	}}
	for _, terminal := range []bool{true, false} {
		out := &bytes.Buffer{}
		d := &display{out: out, terminal: terminal, now: time.Now}
		_, err := d.plan(p)
		// written by the display itself so that long lines are not broken
		shown := strings.NewReplacer("\x1b[?7l", "", "\x1b[?7h", "").Replace(out.String())
		if err != nil || strings.ContainsAny(shown, "\x1b\a\r\u202e\u009b") {
			t.Errorf("shown: %q, %v, want no control characters", shown, err)
		}
	}
}

func TestDisplay(t *testing.T) {
	clock := testkit.NewClock()
	show := func(terminal bool) (*display, *bytes.Buffer) {
		out := &bytes.Buffer{}
		return &display{out: out, terminal: terminal, now: clock.Now}, out
	}
	t.Run("in a pipe each change is a line, and no change is none", func(t *testing.T) {
		d, out := show(false)
		p := goingPlan()
		for range 2 {
			if done, err := d.plan(p); done || err != nil {
				t.Fatalf("draw a plan at work: done and error are %v, %v", done, err)
			}
		}
		p.Status.Nodes.Complete = 5
		_, _ = d.plan(p)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.HasPrefix(lines[0], clock.Now().UTC().Format(time.RFC3339)+" ") || !strings.HasSuffix(lines[0], "Applying: clusters 1/4, nodes 4/6; canary 1/1; rest 0/3; b/n [31m Draining; 1 cluster at work") ||
			!strings.Contains(lines[1], "nodes 5/6") || strings.Contains(out.String(), "\x1b") {
			t.Errorf("shown without a terminal: %q, want two lines with counts, the second with 5 of 6 nodes", lines)
		}
	})
	t.Run("on a terminal the picture is drawn in place, with bars and the time that is left", func(t *testing.T) {
		d, out := show(true)
		p := goingPlan()
		_, _ = d.plan(p)
		first := out.String()
		for _, want := range []string{"canary               [##############################] 1/1\n", "rest                 [>>>>>>>>>>....................] 0/3\n", "nodes                [####################>>>>>.....] 4/6\n"} {
			if !strings.Contains(first, want) {
				t.Errorf("%q is not in\n%s", want, first)
			}
		}
		out.Reset()
		clock.Advance(30 * time.Second)
		p.Status.Nodes.Complete = 5
		_, _ = d.plan(p)
		// Two of four clusters have begun, with six nodes. There are twelve nodes in all, seven are left, and each took 30 s.
		if !strings.Contains(out.String(), "about 3m30s left") || !strings.HasPrefix(out.String(), "\x1b[7A\x1b[J") {
			t.Errorf("shown: %q, want the time left, and the seven lines before overwritten", out)
		}
	})
	t.Run("a line says why a node failed, with the end of its log, and nothing of clusters in a member", func(t *testing.T) {
		d, out := show(false)
		p := goingPlan()
		p.Status.Clusters, p.Status.Waves, p.Status.Applying = nil, nil, nil
		p.Status.Failures = []v1.NodeFailure{{Node: "a", Reason: v1.ReasonUpgradeFailed, Message: "it ended with 1", Log: "begin\nno space\x1b left\n"}}
		_, _ = d.plan(p)
		if !strings.Contains(out.String(), `Applying: nodes 4/6; a failed (UpgradeFailed): it ended with 1, its log ends with "no space  left"; `) {
			t.Errorf("shown: %q, want the failed node with its log", out)
		}
	})
	t.Run("long lines are cut while the picture is drawn anew, and whole at the end", func(t *testing.T) {
		d, out := show(true)
		p := goingPlan()
		_, _ = d.plan(p)
		if !strings.HasPrefix(out.String(), cutLines) || !strings.HasSuffix(out.String(), wrapLines) {
			t.Errorf("shown: %q, want lines cut at the terminal's edge, and wrapping restored", out)
		}
		out.Reset()
		p.Status.Conditions[0].Status = metav1.ConditionTrue
		p.Status.Conditions[0].Message = "4 clusters complete"
		if done, _ := d.plan(p); !done || strings.Contains(out.String(), cutLines) {
			t.Errorf("shown: %q, want no line cut for a complete plan", out)
		}
	})
	t.Run("the end is one of this generation", func(t *testing.T) {
		d, _ := show(false)
		p := goingPlan()
		p.Status.Conditions[0].Status = metav1.ConditionTrue
		p.Generation = 2
		if done, err := d.plan(p); done || err != nil {
			t.Errorf("a paused plan: done and error are %v, %v, want false and nil", done, err)
		}
		p.Status.ObservedGeneration = 2
		if done, err := d.plan(p); !done || err != nil {
			t.Errorf("a complete plan: done and error are %v, %v, want true and nil", done, err)
		}
		p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: v1.ConditionStalled, Status: metav1.ConditionTrue})
		if done, err := d.plan(p); !done || !errors.Is(err, cli.ErrDenied) {
			t.Errorf("a stalled plan: done and error are %v, %v, want true and cli.ErrDenied", done, err)
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// fixture is a hub with a workspace that has the Cluster prod, and a kubeconfig for it.
type fixture struct {
	*testkit.Env
	kubeconfig string
	workspace  string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	env := testkit.Start(t)
	s := &fixture{Env: env, workspace: env.Workspace(t)}
	s.kubeconfig = testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: s.workspace, Env: env})
	s.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.workspace, Name: "prod"}})
	return s
}

// run runs the command "plan" and returns the exit code and the output.
func (s *fixture) run(ctx context.Context, args ...string) (int, string) {
	out := &bytes.Buffer{}
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{New(o)} }
	return cli.Run(ctx, "test", commands, append([]string{"--kubeconfig", s.kubeconfig}, args...), out, out), out.String()
}

func TestPlanCommands(t *testing.T) {
	s := newFixture(t)
	if code, out := s.run(t.Context(), "__complete", "plan", "watch", "-w", "kube-p"); code != 0 || !strings.Contains(out, "kube-public\n") {
		t.Errorf("completion of workspaces: exit code %d: %s, want kube-public", code, out)
	}
	for _, name := range []string{"a", "b"} {
		s.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.workspace, Name: name}})
	}
	plan := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: s.workspace, Name: "k3s"}}
	plan.Spec.ClusterSelector, plan.Spec.Version, plan.Spec.Upgrade.Image = &metav1.LabelSelector{}, "v2", "rancher/k3s-upgrade"
	s.Apply(t, plan)
	command := s.run
	file := filepath.Join(t.TempDir(), "plan.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: cluster.drover.dev/v1\nkind: Plan\nmetadata: {name: k3s}\nspec: {clusterSelector: {}, version: v2, upgrade: {image: x}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"k3s", file} {
		t.Run("preview simulates a plan on the workspace's clusters, one after the other", func(t *testing.T) {
			code, out := command(t.Context(), "plan", "preview", what, "--upgrade", "4m", "--nodes", "2", "--start", "2027-01-02T00:00:00Z")
			if code != 0 || !strings.Contains(out, "Complete: 3 clusters complete") || !strings.Contains(out, "in 24m0s") || !strings.HasPrefix(out, "# each cluster is simulated with 2 nodes, as set by --nodes\n2027-01-02T00:00:00Z ") {
				t.Errorf("exit code %d: %s, want 0 and a plan complete in 24 minutes", code, out)
			}
		})
	}
	t.Run("a plan that is nowhere is an error", func(t *testing.T) {
		for _, verb := range []string{"preview", "watch"} {
			if code, out := command(t.Context(), "plan", verb, "other"); code != cli.ExitError || !strings.Contains(out, "read plan") {
				t.Errorf("a plan that does not exist: %s: %d: %s, want an error", verb, code, out)
			}
		}
	})
	t.Run("preview simulates a plan that is paused, or waits for its channel", func(t *testing.T) {
		text := "kind: Plan\nmetadata: {name: k3s}\nspec: {clusterSelector: {}, channel: 'https://example.com/stable', paused: true, upgrade: {image: x}}\n"
		paused := filepath.Join(t.TempDir(), "plan.yaml")
		if err := os.WriteFile(paused, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out := command(t.Context(), "plan", "preview", paused); code != 0 || !strings.Contains(out, "Complete: ") || !strings.HasPrefix(out, "# the plan is paused: ") {
			t.Errorf("a paused plan: exit code %d: %s, want 0 and that it is simulated as if it were not paused", code, out)
		}
	})
	t.Run("preview simulates a plan without a target on the nodes of the cluster itself", func(t *testing.T) {
		own := filepath.Join(t.TempDir(), "plan.yaml")
		text := "kind: Plan\nmetadata: {name: own}\nspec: {version: v1, nodeSelector: {matchLabels: {own: x}}, upgrade: {image: x}}\n"
		if err := os.WriteFile(own, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, own := range map[string]string{"own-a": "x", "own-b": "x", "other": "y"} {
			s.Apply(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"own": own, v1.PlanLabel("own"): "before"}}})
		}
		if code, out := command(t.Context(), "plan", "preview", own); code != 0 || !strings.Contains(out, "Complete: 2 nodes complete") || strings.Contains(out, "other") {
			t.Errorf("a cluster's own plan: exit code %d: %s, want 0 and two nodes complete", code, out)
		}
		if code, out := command(t.Context(), "plan", "preview", own, "--nodes", "4"); code != 0 || !strings.Contains(out, "Complete: 4 nodes complete") {
			t.Errorf("a cluster's own plan with --nodes 4: exit code %d: %s, want 0 and four nodes complete", code, out)
		}
	})
	t.Run("preview simulates each Plan of a file, or of standard input, and passes over other kinds", func(t *testing.T) {
		one, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		list := "kind: List\nitems:\n- {kind: Namespace, metadata: {name: x}}\n- {kind: Plan, metadata: {name: k3s}, spec: {clusterSelector: {}, version: v2, upgrade: {image: x}}}\n"
		for text, want := range map[string]int{
			"---\n" + string(one) + "---\n# the end\n":                                 1,
			string(one) + "---\n" + string(one):                                        2,
			"kind: Secret\nmetadata: {name: x}\n--- \n" + list + "---\n" + string(one): 2,
			"kind: Secret\nmetadata: {name: x}\n":                                      0,
		} {
			several := filepath.Join(t.TempDir(), "plans.yaml")
			if err := os.WriteFile(several, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			o := &cli.Options{Workspace: s.workspace, Loading: &clientcmd.ClientConfigLoadingRules{ExplicitPath: s.kubeconfig}}
			piped := &bytes.Buffer{}
			r := &previewOptions{Options: o, upgrade: time.Minute, start: "2027-01-02T01:00:00+01:00"}
			err := r.preview(t.Context(), strings.NewReader(text), piped, "-")
			code, out := command(t.Context(), "plan", "preview", several)
			if got := strings.Count(out, "Complete: 3 clusters complete"); got != want || (code != 0) != (want == 0) || want == 0 && !strings.Contains(out, "it contains no Plan") {
				t.Errorf("%q: %d: %s", text, code, out)
			}
			if got := strings.Count(piped.String(), "Complete: 3 clusters complete"); got != want || (err != nil) != (want == 0) || want > 0 && !strings.Contains(piped.String(), "2027-01-02T00:00:00Z ") {
				t.Errorf("%q: %v: %s", text, err, piped)
			}
		}
	})
	t.Run("preview refuses what it cannot simulate, and says what it can", func(t *testing.T) {
		for args, want := range map[string]string{
			"--nodes -3":                  "--nodes is -3: use 1 to 5000",
			"--nodes 3000000":             "--nodes is 3000000: use 1 to 5000",
			"--upgrade -5m":               "--upgrade is -5m0s",
			"--start 2027-01-02T00:00:00": "use a time with its zone",
		} {
			if code, out := command(t.Context(), append([]string{"plan", "preview", "k3s"}, strings.Fields(args)...)...); code != cli.ExitError || !strings.Contains(out, want) {
				t.Errorf("%s: %d: %s, want an error with other text", args, code, out)
			}
		}
		many := &previewOptions{nodes: maxNodes}
		a := &preview{whole: true}
		for range maxSimulated/maxNodes + 1 {
			a.scenario.Clusters = append(a.scenario.Clusters, simulated(&v1.Cluster{}, many.nodes))
		}
		if err := many.complete(t.Context(), "", a); err == nil || !strings.Contains(err.Error(), "at most 50000 can be simulated") {
			t.Error(err)
		}
	})
	t.Run("preview says which nodes are made up, and which of a plan's words it cannot follow", func(t *testing.T) {
		count := func(total int32) *v1.NodeCount { return &v1.NodeCount{Total: total} }
		for name, nodes := range map[string]*v1.NodeCount{"a": count(2), "b": nil, "prod": count(math.MaxInt32)} {
			c := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.workspace, Name: name}}
			if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
				t.Fatal(err)
			}
			c.Status.Nodes = nodes
			if err := s.Client.Status().Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		text := "kind: Plan\nmetadata: {name: k3s}\nspec: {clusterSelector: {}, version: v2, nodeSelector: {matchLabels: {a: b}}, upgrade: {image: x}}\n"
		some := filepath.Join(t.TempDir(), "plan.yaml")
		if err := os.WriteFile(some, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out := command(t.Context(), "plan", "preview", some)
		for _, want := range []string{
			"# the hub does not know which nodes the nodeSelector selects: all nodes are simulated\n",
			"# the hub does not know the nodes of b: each is simulated with 1 node; set the number with --nodes\n",
			"# only 5000 nodes of prod are simulated\n", " 5000/5000 nodes",
		} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("%d: %q is not in %.600s", code, want, out)
			}
		}
	})
	t.Run("preview ends when it is interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if code, _ := command(ctx, "plan", "preview", "k3s"); code != cli.ExitInterrupted {
			t.Errorf("an interrupted preview: exit code %v, want cli.ExitInterrupted", code)
		}
	})
	t.Run("preview in a workspace without Clusters says so", func(t *testing.T) {
		if code, out := command(t.Context(), "plan", "preview", file, "-w", "kube-public"); code != cli.ExitError || !strings.Contains(out, "there is none to simulate the plan on") {
			t.Errorf("a workspace without Clusters: exit code %d: %s, want an error that says so", code, out)
		}
	})
	t.Run("watch goes on when the hub is back, and ends quietly when it is interrupted", func(t *testing.T) {
		o := &cli.Options{Workspace: s.workspace, Loading: &clientcmd.ClientConfigLoadingRules{ExplicitPath: s.kubeconfig}}
		h, err := o.Hub()
		if err != nil {
			t.Fatal(err)
		}
		reads, refused := 0, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		h.WithWatch = interceptor.NewClient(h.WithWatch, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if reads++; reads == 2 {
					return refused
				}
				return c.Get(ctx, key, o, opts...)
			},
			Watch: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
				if reads == 1 {
					return nil, refused
				}
				return c.Watch(ctx, l, opts...)
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := &bytes.Buffer{}
		show := &display{out: writer(func(p []byte) (int, error) {
			if reads == 3 {
				cancel()
			}
			return out.Write(p)
		}), now: time.Now}
		err = watchPlan(ctx, h, "k3s", show)
		if !errors.Is(err, context.Canceled) || strings.Count(out.String(), "trying again: ") != 2 {
			t.Errorf("got %v, %s, want two lines about trying again, and the context's error", err, out)
		}
		if code, out := command(ctx, "plan", "watch", "k3s"); code != cli.ExitInterrupted || out != "" {
			t.Errorf("an interrupted watch: exit code %d: %q, want cli.ExitInterrupted and no text", code, out)
		}
	})
	t.Run("watch ends with what the plan comes to", func(t *testing.T) {
		for kind, want := range map[string]int{v1.ConditionStalled: cli.ExitDenied, v1.ConditionComplete: cli.ExitAllowed} {
			plan.Status = v1.PlanStatus{}
			write := func() {
				plan.Status.ObservedGeneration = plan.Generation
				if err := s.Client.Status().Update(t.Context(), plan); err != nil {
					t.Error(err)
				}
			}
			write()
			ended := make(chan int, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			go func() {
				code, _ := command(ctx, "plan", "watch", "k3s")
				ended <- code
			}()
			plan.Status.Conditions = []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now()}}
			write()
			if code := <-ended; code != want {
				t.Errorf("%s: exit code %d, want %d", kind, code, want)
			}
		}
	})
}
