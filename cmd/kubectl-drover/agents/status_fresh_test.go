// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

func TestStatusDistinguishesANewHubFromABrokenOne(t *testing.T) {
	t.Parallel()
	now := time.Now()
	place := metav1.ObjectMeta{Namespace: "drover-system", Name: managerName}
	deployment := func(age time.Duration, ready int32) client.Object {
		meta := place
		meta.CreationTimestamp = metav1.NewTime(now.Add(-age))
		return &appsv1.Deployment{ObjectMeta: meta, Status: appsv1.DeploymentStatus{ReadyReplicas: ready}}
	}
	lease := func(ago time.Duration) client.Object {
		holder, seconds, renewed := "pod-a", int32(15), metav1.NewMicroTime(now.Add(-ago))
		return &coordinationv1.Lease{ObjectMeta: place, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed}}
	}
	ca, err := trust.NewAuthority(now)
	if err != nil {
		t.Fatal(err)
	}
	published := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: place.Namespace, Name: trust.AuthorityConfigMap},
		Data:       map[string]string{protocol.KeyCABundle: string(ca.Cert)},
	}
	const noReplica, noLease, noCA = "0 of 1 replicas", "no manager has run yet", "the manager has not published its CA"
	const noProxy = "the certificate of the hub's proxy"
	for name, tt := range map[string]struct {
		objects                        []client.Object
		problems, starting, unread, ca []string
	}{
		"just installed": {
			objects: []client.Object{deployment(time.Second, 0)}, starting: []string{noReplica, noLease, noCA},
		},
		"a new leader has not published its CA": {
			objects: []client.Object{deployment(time.Minute, 1), lease(0)}, starting: []string{noCA},
		},
		"a new hub whose leader has died": {
			objects:  []client.Object{deployment(time.Minute, 1), lease(time.Minute), published},
			problems: []string{"no manager leads since"}, unread: []string{noProxy}, ca: []string{"CA"},
		},
		"it never started": {
			objects:  []client.Object{deployment(startLimit, 0)},
			problems: []string{noReplica, noLease}, unread: []string{"the CA: namespace", noProxy},
		},
		"at work": {
			objects: []client.Object{deployment(time.Hour, 1), lease(0), published},
			unread:  []string{noProxy}, ca: []string{"CA"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).WithObjects(tt.objects...).Build()
			r := &statusReader{Hub: &cli.Hub{WithWatch: c, Config: &rest.Config{}}, namespace: place.Namespace, now: now,
				refused: map[string]bool{}}
			if err := r.parts(t.Context()); err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, c := range r.status.Certificates {
				found = append(found, c.Name)
			}
			wantLines(t, "problems", r.status.Problems, tt.problems)
			wantLines(t, "things that a new hub lacks", r.status.Starting, tt.starting)
			wantLines(t, "parts that were not read", r.status.Unread, tt.unread)
			wantLines(t, "certificates", found, tt.ca)
			text := r.status.text()
			const says = "The manager's Deployment is less than 2 minutes old"
			if is := strings.Contains(text, says); is != (len(tt.starting) > 0) {
				t.Errorf("the text is\n%s\nwant it to say whether the Deployment is new", text)
			}
		})
	}
}

// wantLines reports an error unless each line begins with one of the texts and each text begins one line.
func wantLines(t *testing.T, what string, lines, want []string) {
	t.Helper()
	same := len(lines) == len(want)
	for _, text := range want {
		same = same && slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, text) })
	}
	if !same {
		t.Errorf("the %s are %q, want %q", what, lines, want)
	}
}
