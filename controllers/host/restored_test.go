// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// lost is the checkpoint of hosts in these tests, which the restored hub has no record of.
const lost = "lease/1/a/9"

// createInstructions creates instructions that belong to an owner.
func (w *world) createInstructions(owner string) (version string) {
	w.t.Helper()
	given := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: w.name.Name + v1.HostInstructionsSecretSuffix, Labels: map[string]string{v1.LabelHost: w.name.Name}},
		Type:       v1.SecretTypeHostInstructions,
		StringData: map[string]string{v1.HostInstructionsKey: fmt.Sprintf(`{"owner": %q}`, owner)},
	}
	if err := w.Client.Create(w.t.Context(), given); err != nil {
		w.t.Fatal(err)
	}
	return string(given.UID) + "." + given.ResourceVersion
}

func (w *world) held() *v1.RestoreStatus {
	w.t.Helper()
	h := &v1.Host{}
	if err := w.Client.Get(w.t.Context(), w.name, h); err != nil {
		w.t.Fatal(err)
	}
	if is := meta.IsStatusConditionFalse(h.Status.Conditions, v1.ConditionRestoreConfirmed); is != (h.Status.Restore != nil) {
		w.t.Errorf("status.restore is %+v, and RestoreConfirmed is False: %t", h.Status.Restore, is)
	}
	return h.Status.Restore
}

// heldBecause returns the message of RestoreConfirmed.
func (w *world) heldBecause() string {
	w.t.Helper()
	h := &v1.Host{}
	if err := w.Client.Get(w.t.Context(), w.name, h); err != nil {
		w.t.Fatal(err)
	}
	if c := meta.FindStatusCondition(h.Status.Conditions, v1.ConditionRestoreConfirmed); c != nil {
		return c.Message
	}
	return ""
}

func (w *world) awaitAsked() {
	w.t.Helper()
	testkit.Eventually(w.t, time.Minute, func(context.Context) error {
		if !w.asked() {
			return errors.New("the agent was not asked to change its instructions")
		}
		return nil
	})
}

func TestRestoredHubChangesAHostOnlyAfterConfirmation(t *testing.T) {
	t.Parallel()
	const name, old = "m1-host-plan", "Cluster/old"
	for what, c := range map[string]struct {
		onHub, onHost bool
		owner         *string // of the instructions on the host; the instructions on the hub are old
		want          v1.RestoreStatus
		message       string
	}{
		"a host whose instructions are not in the backup is not cleaned": {onHost: true, message: "would be cleaned;",
			want: v1.RestoreStatus{Summary: "0 to add, 0 to change, 1 to remove", Remove: []string{name}}},
		"a host whose instructions are older in the backup keeps the newer ones": {onHub: true, onHost: true, owner: new(old), message: "given older instructions;",
			want: v1.RestoreStatus{Summary: "0 to add, 1 to change, 0 to remove", Change: []string{name}}},
		"a host whose instructions are of another owner in the backup is listed as one to be cleaned": {onHub: true, onHost: true, owner: new("Cluster/new"),
			message: "cleaned, then given instructions of " + old, want: v1.RestoreStatus{Summary: "0 to add, 1 to change, 1 to remove", Change: []string{name}, Remove: []string{name}}},
		"so is one that does not say who owns its instructions": {onHub: true, onHost: true, message: "cleaned, then given instructions of " + old,
			want: v1.RestoreStatus{Summary: "0 to add, 1 to change, 1 to remove", Change: []string{name}, Remove: []string{name}}},
		"a host that was given back since the backup gets no old instructions": {onHub: true, message: "given instructions that were taken away;",
			want: v1.RestoreStatus{Summary: "1 to add, 0 to change, 0 to remove", Add: []string{name}}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.forgot = lost
			w.reconcile()
			progress := protocol.HostProgress{Checkpoint: lost}
			if c.onHub {
				w.createInstructions(old)
			}
			if c.onHost {
				progress.Version, progress.Owner, progress.Phase = "another", c.owner, protocol.HostApplied
			}
			key := testkit.Key(t)
			h := w.join(key)
			agent := w.connect(h, key, progress)
			w.leavesAlone()
			got := w.held()
			if got == nil || got.Checkpoint != lost || got.Summary != c.want.Summary || !slices.Equal(got.Add, c.want.Add) || !slices.Equal(got.Change, c.want.Change) ||
				!slices.Equal(got.Remove, c.want.Remove) {
				t.Fatalf("status.restore is %+v, want %+v", got, c.want)
			}
			if message := w.heldBecause(); !strings.Contains(message, c.message) {
				t.Errorf("the message is %q, want %q in it", message, c.message)
			}
			agent.Kill()
			testkit.Eventually(t, time.Minute, w.disconnected)
			w.reconcile()
			if w.held() == nil {
				t.Error("a host that is away is not known to wait any more")
			}
			w.forgot = "" // the history no longer reaches back
			agent = w.connect(h, key, progress)
			w.leavesAlone()
			agent.Kill()
			testkit.Eventually(t, time.Minute, w.disconnected)
			progress.Checkpoint = "" // the file is lost
			w.connect(h, key, progress)
			w.leavesAlone()
			if got := w.held(); got == nil || got.Checkpoint != lost {
				t.Errorf("without its checkpoint the host waits for %+v", got)
			}
			testkit.Update(t, w.Client, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: w.name.Name}}, func(h *v1.Host) {
				h.Annotations = map[string]string{v1.AnnotationRestored: "lease/1/a/8"}
			})
			w.leavesAlone() // it confirms another restore
			testkit.Update(t, w.Client, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: w.name.Name}}, func(h *v1.Host) {
				h.Annotations = map[string]string{v1.AnnotationRestored: lost}
			})
			w.awaitAsked()
			if got := w.held(); got != nil {
				t.Errorf("after it was confirmed status.restore is %+v", got)
			}
		})
	}
	for what, given := range map[string]bool{"a host that has the hub's instructions gets the present checkpoint": true, "so does one without instructions": false} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.forgot = lost
			w.reconcile()
			progress := protocol.HostProgress{Checkpoint: lost}
			if given {
				progress.Version, progress.Phase = w.createInstructions(""), protocol.HostApplied
			}
			key := testkit.Key(t)
			w.connect(w.join(key), key, progress)
			w.awaitAsked()
			if got := w.held(); got != nil {
				t.Errorf("status.restore is %+v", got)
			}
		})
	}
}

// While a manager settles, the status of a Host is older, and on a restored hub it comes from the backup. The
// provisioner takes no Host whose status is from another term.
func TestStatusNamesTheLeaderThatTheAgentReportedTo(t *testing.T) {
	t.Parallel()
	w, term := newWorld(t), "lease/1/a"
	w.r.Term = func() string { return term }
	w.reconcile()
	key := testkit.Key(t)
	h := w.join(key)
	reportedTo := func(want string) {
		t.Helper()
		w.reconcile()
		got := &v1.Host{}
		if err := w.Client.Get(t.Context(), w.name, got); err != nil {
			t.Fatal(err)
		}
		if got.Status.ReportedTo != want {
			t.Errorf("status.reportedTo is %q, want %q", got.Status.ReportedTo, want)
		}
	}
	reportedTo("")
	agent := w.connect(h, key, protocol.HostProgress{})
	reportedTo("lease/1/a")
	agent.Kill()
	testkit.Eventually(t, time.Minute, w.disconnected)
	term, w.settling = "lease/2/b", true
	reportedTo("lease/1/a")
	w.connect(h, key, protocol.HostProgress{})
	reportedTo("lease/2/b")
}
