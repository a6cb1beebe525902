// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/test/testkit"
)

func TestRestored(t *testing.T) {
	t.Parallel()
	waiting := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod"}, Status: v1.ClusterStatus{Restore: &v1.RestoreStatus{
		Checkpoint: "lease/1/a/2", Summary: "3 to add, 0 to change, 1 to remove", Add: []string{"crtb/alice"}, Remove: []string{"project/web\x1b[2J"}}}}
	other := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "dev"}}
	held := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "k3s"}, Status: v1.PlanStatus{Conditions: []metav1.Condition{
		{Type: v1.ConditionComplete, Status: metav1.ConditionFalse, Reason: v1.ReasonHubRestored}}}}
	elsewhere, runs := held.DeepCopy(), held.DeepCopy()
	elsewhere.Namespace, runs.Name, runs.Status.Conditions[0].Reason = "team-b", "runs", v1.ReasonApplying
	rack := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "rack1"}, Status: v1.HostStatus{Restore: &v1.RestoreStatus{
		Checkpoint: "lease/1/a/3", Summary: "0 to add, 0 to change, 1 to remove", Remove: []string{"rack1-host-plan"}},
		Conditions: []metav1.Condition{{Type: v1.ConditionRestoreConfirmed, Status: metav1.ConditionFalse, Message: "It would be cleaned."}}}}
	c := fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).WithObjects(waiting, other, rack, held, elsewhere, runs).Build()
	h := &cli.Hub{WithWatch: c, Workspace: "team-a"}
	confirmed := func(act consent, names ...string) (string, error) {
		t.Helper()
		found, err := unconfirmed(t.Context(), h, "", names)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = confirm(t.Context(), h, &out, found, act)
		return out.String(), err
	}
	annotation := func() string {
		t.Helper()
		now := &v1.Cluster{}
		if err := h.Get(t.Context(), client.ObjectKeyFromObject(waiting), now); err != nil {
			t.Fatal(err)
		}
		return now.Annotations[v1.AnnotationRestored]
	}
	out, err := confirmed(consent{})
	for _, want := range []string{"team-a/prod: 3 to add", "add     crtb/alice", "add     and 2 more", "remove  project/web", "team-a/host/rack1: 0 to add", "remove  rack1-host-plan", "\n  It would be cleaned.\n", "2 members, run the command again with --yes", "all their members are confirmed: team-a/k3s. Delete", "revoked after the backup"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
	if !errors.Is(err, cli.ErrDenied) || annotation() != "" || strings.Contains(out, "\x1b") {
		t.Errorf("the list ends with %v, annotation %q:\n%s", err, annotation(), out)
	}
	if out, err := confirmed(consent{listed: true}, "dev"); err != nil || !strings.Contains(out, "No member waits") || annotation() != "" {
		t.Errorf("a member that does not wait: %v, %s", err, out)
	}
	listed, err := unconfirmed(t.Context(), h, "team-a", nil)
	if err != nil {
		t.Fatal(err)
	}
	changed, ok := listed[0].DeepCopyObject().(*v1.Cluster)
	if !ok {
		t.Fatalf("listed %T first, want the Cluster", listed[0].Object)
	}
	changed.Status.Restore.Summary = "4 to add, 0 to change, 1 to remove"
	if err := h.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if err := confirm(t.Context(), h, &bytes.Buffer{}, listed, consent{listed: true, more: true}); err == nil || annotation() != "" {
		t.Errorf("a list that has changed is confirmed: %v", err)
	}
	if out, err := confirmed(consent{listed: true}, "prod"); err == nil || !strings.Contains(err.Error(), "add --more") || !strings.Contains(out, "Confirmed: 0.") || annotation() != "" {
		t.Errorf("a list that does not name all is confirmed with %v, annotation %q:\n%s", err, annotation(), out)
	}
	if out, err := confirmed(consent{listed: true, more: true}, "prod"); err != nil || !strings.Contains(out, "Confirmed: 1.") || annotation() != "lease/1/a/2" {
		t.Errorf("confirmed with %v, annotation %q:\n%s", err, annotation(), out)
	}
	if out, err := confirmed(consent{listed: true}, "host/rack1"); err != nil || !strings.Contains(out, "Confirmed: 1.") {
		t.Errorf("the host is confirmed with %v:\n%s", err, out)
	}
	now := &v1.Host{}
	if err := h.Get(t.Context(), client.ObjectKeyFromObject(rack), now); err != nil || now.Annotations[v1.AnnotationRestored] != "lease/1/a/3" {
		t.Errorf("the host has the annotations %v, %v", now.Annotations, err)
	}
}
