// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/provision/hub"
)

const namespace = "drover-system"

func reader(t *testing.T, objects ...client.Object) client.Reader {
	t.Helper()
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(kinds); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(kinds).WithObjects(objects...).Build()
}

func TestStatusIsCurrentOnlyIfItWasReportedToThePresentLeader(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	lease := func(history string, renewed time.Time, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: hub.ManagerLease, UID: "uid",
				Annotations: map[string]string{v1.AnnotationTerms: history},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)), RenewTime: &metav1.MicroTime{Time: renewed},
			},
		}
	}
	const before, leads = "1/a/7", "1/a/7 2/b/3"
	const notYet, notRenewed = "has not reported yet to the manager that leads now", "was not renewed lately"
	const missing = "the manager's Lease drover-system/drover-manager is missing"
	for name, tc := range map[string]struct {
		lease      *coordinationv1.Lease
		reportedTo string
		want       string // part of the reason, empty if the status counts
	}{
		"reported to the leader":             {lease(leads, now, "b"), "uid/2/b", ""},
		"never reported":                     {lease(leads, now, "b"), "", notYet},
		"reported to a former leader":        {lease(leads, now, "b"), "uid/1/a", notYet},
		"reported on another hub":            {lease(leads, now, "b"), "other/2/b", notYet},
		"the Lease is of a backup, too":      {lease(before, now.Add(-time.Hour), "a"), "uid/1/a", notRenewed},
		"no manager holds the Lease":         {lease(leads, now, ""), "uid/2/b", notRenewed},
		"the Lease was not renewed twice":    {lease(leads, now.Add(-20*time.Second), "b"), "uid/2/b", ""},
		"the clock of the manager is behind": {lease(leads, now.Add(-31*time.Second), "b"), "uid/2/b", notRenewed},
		"the Lease has no history":           {lease("", now, "b"), "", notYet},
		"there is no election":               {nil, "", ""},
		"the Lease was deleted":              {nil, "uid/2/b", missing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var objects []client.Object
			if tc.lease != nil {
				objects = append(objects, tc.lease)
			}
			h := hub.Hub{Live: reader(t, objects...), Namespace: namespace, Now: func() time.Time { return now }}
			got, err := h.NotCurrent(t.Context(), &v1.Host{Status: v1.HostStatus{ReportedTo: tc.reportedTo}})
			if err != nil || (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("the reason against it is %q (%v), want %q", got, err, tc.want)
			}
		})
	}
}

func TestSettingsAreReadFromTheManagersConfigMap(t *testing.T) {
	t.Parallel()
	published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "drover-ca"},
		Data: map[string]string{"ca.crt": "the CA", "servers": "https://a.example.com\nhttps://b.example.com"}}
	got, err := hub.Hub{Client: reader(t, published), Namespace: namespace}.Settings(t.Context())
	want := []string{"https://a.example.com", "https://b.example.com"}
	if err != nil || !slices.Equal(got.Servers, want) || got.CABundle != "the CA" {
		t.Errorf("settings %+v (%v), want servers %v and the CA", got, err, want)
	}
	if _, err := (hub.Hub{Client: reader(t), Namespace: namespace}).Settings(t.Context()); err == nil {
		t.Error("no error without the ConfigMap, want one that names it")
	}
}
