// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	const patience = 5 * time.Minute
	for name, tt := range map[string]struct {
		health     status.Status
		definition bool
		waited     time.Duration
		want       verdict
	}{
		"an object in progress has time": {status.InProgressStatus, false, time.Minute,
			verdict{protocol.SetProgressing, "why", 4 * time.Minute}},
		"an object in progress is late": {status.InProgressStatus, false, patience,
			verdict{protocol.SetUnhealthy, "it was not healthy within 5m0s: why", 0}},
		"a failed object has no time": {status.FailedStatus, false, 0, verdict{protocol.SetUnhealthy, "why", 0}},
		"an object whose status cannot be read has time": {status.UnknownStatus, false, 0,
			verdict{protocol.SetProgressing, "why", patience}},
		"a definition has a minute": {status.InProgressStatus, true, time.Second,
			verdict{protocol.SetProgressing, "it is not established yet", 59 * time.Second}},
		"a definition is late": {status.InProgressStatus, true, time.Minute,
			verdict{protocol.SetFailed, "it is not established: why", 0}},
		"a definition whose names are taken has no time": {status.FailedStatus, true, 0,
			verdict{protocol.SetFailed, "it is not established: why", 0}},
	} {
		if got := verdictOf(live{health: tt.health, message: "why"}, tt.definition, tt.waited, patience); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestOnlyObjectsThatAreNotAppliedBlock(t *testing.T) {
	t.Parallel()
	for phase, want := range map[protocol.SetPhase]bool{
		protocol.SetProgressing: false, protocol.SetUnhealthy: false, protocol.SetDrifted: false, protocol.SetPending: true,
		protocol.SetFailed: true, protocol.SetForbidden: true, protocol.SetConflict: true, protocol.SetFighting: true,
	} {
		if got := blocks(phase); got != want {
			t.Errorf("%s: got %t, want %t", phase, got, want)
		}
	}
}

func TestErrorsOfSecretsContainNoValues(t *testing.T) {
	t.Parallel()
	user := baseline.User("base")
	status := func(code int32, reason metav1.StatusReason, message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: reason, Message: message,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: "data", Message: "hunter2"}}}}}
	}
	webhook := `admission webhook "a" denied the request: hunter2 of User "` + user + `"`
	configMap, secret := refOf("v1", "ConfigMap", "web", "a"), refOf("v1", "Secret", "web", "a")
	for name, tt := range map[string]struct {
		r    ref
		err  error
		want protocol.SetPhase
	}{
		"invalid": {configMap, status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "hunter2"),
			protocol.SetFailed},
		"a webhook":  {secret, status(http.StatusForbidden, metav1.StatusReasonForbidden, webhook), protocol.SetForbidden},
		"a conflict": {secret, status(http.StatusConflict, metav1.StatusReasonConflict, "hunter2"), protocol.SetFailed},
		"a bad one":  {secret, status(http.StatusBadRequest, metav1.StatusReasonBadRequest, "hunter2"), protocol.SetFailed},
		"another's":  {secret, &kube.ForeignError{Message: "it is not the Baseline's"}, protocol.SetConflict},
		"no right": {configMap, status(http.StatusForbidden, metav1.StatusReasonForbidden, `User "`+user+`" cannot patch`),
			protocol.SetForbidden},
		"a webhook that denies an object": {configMap, status(http.StatusForbidden, metav1.StatusReasonForbidden, "denied"),
			protocol.SetFailed},
		"no connection": {secret, errors.New("connection refused"), protocol.SetFailed},
	} {
		phase, message := explain(tt.r, user, tt.err)
		if phase != tt.want || message == "" || strings.Contains(message, "hunter2") {
			t.Errorf("%s: got %s %q, want %s and no value of the object", name, phase, message, tt.want)
		}
	}
}

func TestTheHealthOfASecretHasNoMessage(t *testing.T) {
	t.Parallel()
	o, err := kube.ReadWhole([]byte(`{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "generation": 2},
		"status": {"observedGeneration": 1, "conditions": [{"type": "Stalled", "status": "True", "message": "hunter2"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	now, other := readLive(kind{"", "Secret"}, "base", o), readLive(kind{"", "ConfigMap"}, "base", o)
	if now.message != "" || now.health == status.CurrentStatus || other.message == "" {
		t.Errorf("got %+v, and %+v for a ConfigMap, want a message for the ConfigMap only", now, other)
	}
}

// largestObject is a labelled ConfigMap with a spec that takes most memory when it is decoded, and is not too large.
func largestObject(t *testing.T, name string) *kube.Whole {
	t.Helper()
	o, err := kube.ReadWhole(fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "web",
		"name": %q, "labels": {%q: "base"}}, "spec": {"a": [%s0]}}`, name, v1.LabelBaseline,
		strings.Repeat(`{"":0},`, 31_000)))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Any user in the member can give the Baseline's label to an object.
func TestOnlyTheObjectsOfABaselineAreDecoded(t *testing.T) {
	b := &kept{name: "base"}
	configMaps := kind{"", "ConfigMap"}
	b.store.interest.Store(&interest{ref{configMaps, "web", "ours"}: true})
	read := b.reader(configMaps)
	for name, want := range map[string]struct {
		stored      bool
		least, most uint64
	}{"ours": {true, 4 << 20, 32 << 20}, "forged": {false, 0, 4 << 10}} {
		o := largestObject(t, name)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		now, stored := read(o)
		runtime.ReadMemStats(&after)
		if stored != want.stored || now.message != "" {
			t.Errorf("%s: got %+v and %t, want %t", name, now, stored, want.stored)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got < want.least || got > want.most {
			t.Errorf("%s: reading allocated %d bytes, want %d to %d", name, got, want.least, want.most)
		}
	}
}

func TestPlanFindsWhatIsNewAndWhatIsNotWanted(t *testing.T) {
	t.Parallel()
	have := entry{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "web", Name: "old", UID: "1"}
	stays := entry{APIVersion: "a.io/v1beta1", Kind: "Gateway", Name: "a", UID: "2"}
	i := &inventory{entries: map[ref]entry{have.ref(): have, stays.ref(): stays}}
	all := []wanted{
		{ref: refOf("a.io/v1", "Gateway", "", "a"), apiVersion: "a.io/v1"},
		{ref: refOf("v1", "Namespace", "", "new"), apiVersion: "v1"},
		{ref: refOf("v1", "Namespace", "", "bad"), apiVersion: "v1", problem: &protocol.SetObject{}},
	}
	doomed := i.plan(all)
	if len(doomed) != 1 || doomed[0] != have {
		t.Errorf("got %+v to delete, want only %+v", doomed, have)
	}
	if len(i.entries) != 3 || !i.changed || i.entries[stays.ref()].UID != "2" {
		t.Errorf("got the inventory %+v, want one new entry, and the Gateway whatever its version", i.entries)
	}
}
