// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// retried is a workspace with the Plan "k3s", of which the member "prod" has failed.
type retried struct {
	*testkit.Env
	t          *testing.T
	manifest   *unstructured.Unstructured
	kubeconfig string
	key        client.ObjectKey
}

// manifests of Plans in a Git repository, without and with the default of spec.paused.
const (
	silentManifest = `
apiVersion: cluster.drover.dev/v1
kind: Plan
metadata: {name: k3s}
spec: {clusterName: prod, version: v1, upgrade: {image: registry.example.com/upgrade}}
`
	explicitManifest = `
apiVersion: cluster.drover.dev/v1
kind: Plan
metadata: {name: k3s}
spec: {clusterName: prod, version: v1, paused: false, upgrade: {image: registry.example.com/upgrade}}
`
)

func newRetried(t *testing.T, hub *testkit.Env, manifest string) *retried {
	t.Helper()
	r := &retried{Env: hub, t: t, manifest: &unstructured.Unstructured{}}
	if err := yaml.Unmarshal([]byte(manifest), &r.manifest.Object); err != nil {
		t.Fatal(err)
	}
	r.manifest.SetNamespace(hub.Workspace(t))
	r.key = client.ObjectKeyFromObject(r.manifest)
	r.kubeconfig = testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: r.key.Namespace, Env: hub})
	r.apply()
	r.status(v1.ReasonNodeFailed, 1)
	return r
}

// apply applies the manifest as a GitOps tool does, without taking fields from others.
func (r *retried) apply(options ...client.ApplyOption) *unstructured.Unstructured {
	r.t.Helper()
	object := r.manifest.DeepCopy()
	options = append(options, client.FieldOwner("git"))
	if err := r.Client.Apply(r.t.Context(), client.ApplyConfigurationFromUnstructured(object), options...); err != nil {
		r.t.Fatal(err)
	}
	return object
}

func (r *retried) read() *v1.Plan {
	r.t.Helper()
	plan := &v1.Plan{}
	if err := r.Client.Get(r.t.Context(), r.key, plan); err != nil {
		r.t.Fatal(err)
	}
	return plan
}

// status writes the status as the hub does when the member reports a reason.
func (r *retried) status(reason string, failed int32) {
	r.t.Helper()
	plan := r.read()
	now := metav1.Now()
	plan.Status.ObservedGeneration = plan.Generation
	plan.Status.Clusters = &v1.PlanCount{Total: 1, Failed: failed, Summary: "0/1"}
	plan.Status.Failures = []v1.NodeFailure{{Cluster: "prod", Node: "n", Attempt: 1, Final: true, At: now,
		Reason: v1.ReasonUpgradeFailed, Message: "exit code 1"}}
	plan.Status.Members = []v1.PlanMember{{Name: "prod", Since: now, Reason: reason, Message: "as the test wants"}}
	if err := r.Client.Status().Update(r.t.Context(), plan); err != nil {
		r.t.Fatal(err)
	}
}

// answer answers a pause of the plan in the background, as the member would. It returns a function that waits for it.
func (r *retried) answer(do func()) (done func()) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		err := wait.PollUntilContextTimeout(r.t.Context(), 50*time.Millisecond, 30*time.Second, true,
			func(ctx context.Context) (bool, error) {
				plan := &v1.Plan{}
				err := r.Client.Get(ctx, r.key, plan)
				return plan.Spec.Paused, err
			})
		if err != nil {
			r.t.Errorf("wait for the pause: %v", err)
			return
		}
		do()
	}()
	return func() { <-answered }
}

// run runs "kubectl drover plan" with arguments.
func (r *retried) run(ctx context.Context, args ...string) (int, string) {
	r.t.Helper()
	var out strings.Builder
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{New(o)} }
	args = append(append([]string{"plan"}, args...), "--kubeconfig", r.kubeconfig)
	code := cli.Run(ctx, "test", commands, args, &out, &out)
	return code, out.String()
}

func TestAPlanIsRetriedByAPause(t *testing.T) {
	hub := testkit.Shared(t)
	for name, manifest := range map[string]string{
		"the manifest does not set paused": silentManifest, "the manifest sets paused to false": explicitManifest,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRetried(t, hub, manifest)
			before := r.read()
			answered := r.answer(func() { r.status(v1.ReasonPaused, 0) })
			code, out := r.run(t.Context(), "retry", "k3s")
			answered()
			if code != cli.ExitAllowed || out != "plan.cluster.drover.dev/k3s retried\n" {
				t.Errorf("exit code %d: %s", code, out)
			}
			after := r.read()
			if after.Spec.Paused || after.Generation != before.Generation+2 {
				t.Errorf("paused is %v and the generation went from %d to %d, want a pause and its end",
					after.Spec.Paused, before.Generation, after.Generation)
			}
			if applied := r.apply(client.DryRunAll); applied.GetGeneration() != after.Generation {
				t.Errorf("the manifest would change the plan to %v", applied.Object["spec"])
			}
		})
	}
}

// succeed writes the status of a plan that is complete in its member.
func succeed(r *retried) {
	r.t.Helper()
	plan := r.read()
	plan.Status = v1.PlanStatus{Clusters: &v1.PlanCount{Total: 1, Complete: 1, Summary: "1/1"}}
	if err := r.Client.Status().Update(r.t.Context(), plan); err != nil {
		r.t.Fatal(err)
	}
}

func TestARetryChangesNothing(t *testing.T) {
	hub := testkit.Shared(t)
	for name, tt := range map[string]struct {
		args   []string
		change func(*retried)
		code   int
		want   string
	}{
		"in a dry run that prints what Git holds": {
			[]string{"--dry-run=client", "-o", "yaml"}, nil, cli.ExitAllowed, "image: registry.example.com/upgrade"},
		"in a dry run of the hub": {[]string{"--dry-run=server"}, nil, cli.ExitAllowed, "retried (server dry run)"},
		"without a failure":       {nil, succeed, cli.ExitAllowed, "unchanged: no node has failed"},
		"without a failure, in a dry run": {
			[]string{"--dry-run=client"}, succeed, cli.ExitAllowed, "unchanged: no node has failed (dry run)"},
		"without a failure, in a dry run that prints what Git holds": {
			[]string{"--dry-run=client", "-o", "yaml"}, succeed, cli.ExitAllowed, "k3s has failed: there is nothing to retry"},
		"if the plan is paused": {nil, func(r *retried) {
			r.manifest.Object["spec"].(map[string]any)["paused"] = true
			r.apply()
		}, cli.ExitError, `"kubectl drover plan resume k3s" continues it`},
		"with a limit of zero": {[]string{"--timeout", "0s"}, nil, cli.ExitError, "must be longer than 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRetried(t, hub, silentManifest)
			if tt.change != nil {
				tt.change(r)
			}
			before := r.read().Generation
			code, out := r.run(t.Context(), append([]string{"retry", "k3s"}, tt.args...)...)
			if code != tt.code || !strings.Contains(out, tt.want) || strings.Contains(out, "paused: true") {
				t.Errorf("exit code %d: %s, want %d and %q", code, out, tt.code, tt.want)
			}
			if after := r.read().Generation; after != before {
				t.Errorf("the generation went from %d to %d", before, after)
			}
		})
	}
}

func TestARetryThatCannotWaitLeavesNoPlanPaused(t *testing.T) {
	hub := testkit.Shared(t)
	for name, tt := range map[string]struct {
		answer func(*retried, context.CancelFunc)
		limit  string
		code   int
		want   string
	}{
		"a member is disconnected": {
			func(r *retried, _ context.CancelFunc) { r.status(v1.ReasonMembersAway, 1) }, "30s",
			cli.ExitError, "these failures stay: prod: as the test wants"},
		"a node is not ready": {
			func(r *retried, _ context.CancelFunc) { r.status(v1.ReasonNodeFailed, 1) }, "2s",
			cli.ExitError, "these failures stay: prod: as the test wants"},
		"no manager runs": {
			func(*retried, context.CancelFunc) {}, "1s",
			cli.ExitError, "these failures stay: Drover has not looked at the plan yet"},
		"the user interrupts it": {
			func(_ *retried, interrupt context.CancelFunc) { interrupt() }, "30s", cli.ExitInterrupted, ""},
		"a GitOps tool resumes the plan": {
			func(r *retried, _ context.CancelFunc) {
				r.manifest.Object["spec"].(map[string]any)["paused"] = false
				r.apply(client.ForceOwnership)
			}, "30s", cli.ExitError, "another client resumed the plan"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRetried(t, hub, silentManifest)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			answered := r.answer(func() { tt.answer(r, interrupt) })
			code, out := r.run(ctx, "retry", "k3s", "--timeout", tt.limit)
			answered()
			if code != tt.code || !strings.Contains(out, tt.want) {
				t.Errorf("exit code %d: %s, want %d and %q", code, out, tt.code, tt.want)
			}
			if r.read().Spec.Paused {
				t.Error("the plan stays paused")
			}
		})
	}
}

// TestARetryUndoesNoOtherChange has another client that changes the plan or replaces it while the command waits.
func TestARetryUndoesNoOtherChange(t *testing.T) {
	hub := testkit.Shared(t)
	for name, change := range map[string]func(*retried){
		"of the spec": func(r *retried) {
			r.manifest.Object["spec"].(map[string]any)["version"] = "v2"
			r.manifest.Object["spec"].(map[string]any)["paused"] = true
			r.apply(client.ForceOwnership)
		},
		"to another plan of the same name": func(r *retried) {
			if err := r.Client.Delete(r.t.Context(), r.read()); err != nil {
				r.t.Error(err)
			}
			r.manifest.Object["spec"].(map[string]any)["paused"] = true
			r.apply()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRetried(t, hub, silentManifest)
			answered := r.answer(func() {
				change(r)
				r.status(v1.ReasonPaused, 0)
			})
			code, out := r.run(t.Context(), "retry", "k3s")
			answered()
			if code != cli.ExitError || !strings.Contains(out, "another client has changed the plan in the meantime") {
				t.Errorf("exit code %d: %s, want an error about the change", code, out)
			}
			if !r.read().Spec.Paused {
				t.Error("the command resumed the plan that another client has paused")
			}
		})
	}
}

func TestARetryPausesNoPlanThatAnotherClientPausesFirst(t *testing.T) {
	r := newRetried(t, testkit.Shared(t), silentManifest)
	plan := r.read()
	faster := testkit.Competing(r.Client, func(context.Context, any) bool {
		r.manifest.Object["spec"].(map[string]any)["paused"] = true
		r.apply()
		return true
	})
	_, err := pause(t.Context(), &cli.Hub{WithWatch: r.Client}, faster, plan)
	if err == nil || !strings.Contains(err.Error(), "is paused") {
		t.Errorf("got %v, want an error that says that the plan is paused", err)
	}
	if after := r.read(); !after.Spec.Paused || after.Generation != plan.Generation+1 {
		t.Errorf("generation %d, paused %v, want only the pause of the other client", after.Generation, after.Spec.Paused)
	}
}

func TestARetryWaitsForMembersWithFailuresOnly(t *testing.T) {
	member := func(name, reason string) v1.PlanMember {
		return v1.PlanMember{Name: name, Reason: reason, Message: "m"}
	}
	for name, tt := range map[string]struct {
		failed  int32
		members []v1.PlanMember
		done    bool
		left    string
	}{
		"all have paused":                         {0, []v1.PlanMember{member("a", v1.ReasonPaused)}, true, ""},
		"a hub of an earlier version counts them": {1, []v1.PlanMember{member("a", v1.ReasonPaused)}, true, ""},
		"one has not":                             {1, []v1.PlanMember{member("a", v1.ReasonNodeFailed)}, false, "a: m"},
		"one waited for its next attempt":         {0, []v1.PlanMember{member("a", v1.ReasonAwaitingRetry)}, false, "a: m"},
		"another one without failures has not":    {0, []v1.PlanMember{member("c", v1.ReasonApplying)}, true, ""},
		"one was not listed at first":             {1, []v1.PlanMember{member("z", v1.ReasonNodeFailed)}, false, "z: m"},
		"one is disconnected": {1, []v1.PlanMember{member("a", v1.ReasonMembersAway), member("b", v1.ReasonPaused)}, true,
			"a: m"},
		"some are not listed": {v1.MaxPlanMembers + 2, []v1.PlanMember{member("a", v1.ReasonPaused)}, false, "2 more"},
	} {
		plan := &v1.Plan{}
		plan.Status.Clusters, plan.Status.Members = &v1.PlanCount{Failed: tt.failed}, tt.members
		done, left := pausedMembers(plan, []string{"a", "b"})
		if done != tt.done || strings.Join(left, "; ") != tt.left {
			t.Errorf("%s: done %v, left %q, want %v and %q", name, done, left, tt.done, tt.left)
		}
	}
}
