// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/signin/keys"
)

func TestVerificationDataOutlivesTheOfflinePeriod(t *testing.T) {
	start := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for _, offline := range []time.Duration{10 * time.Minute, time.Hour, 90 * time.Minute, 12 * time.Hour} {
		before, _ := validity(start, offline)
		for now := start; now.Before(start.Add(offline)); now = now.Add(time.Minute) {
			until, again := validity(now, offline)
			if left := until.Sub(again); left < offline {
				t.Fatalf("%s at %s: when the next is delivered, what is there is valid for %s only", offline, now, left)
			}
			if left := until.Sub(now); left > offline+offline/4 || !again.After(now) {
				t.Fatalf("%s at %s: valid for %s, again at %s", offline, now, left, again)
			}
			if until.Before(before) {
				t.Fatalf("%s at %s: valid until %s, before it was until %s", offline, now, until, before)
			}
			before = until
		}
	}
}

// deliveries records the sets to deliver.
type deliveries struct {
	wanted map[types.NamespacedName]*set.Set
	calls  int
}

func (d *deliveries) Replace(_ delivery.Key, sets map[types.NamespacedName]*set.Set) {
	d.wanted = sets
	d.calls++
}

func (d *deliveries) access(t *testing.T, name types.NamespacedName) (*protocol.DirectAccess, string) {
	t.Helper()
	given := d.wanted[name]
	if given == nil {
		return nil, ""
	}
	_, content, err := set.Parse(given.JSON())
	if err != nil || len(content.Objects) != 1 {
		t.Fatalf("the set is %s (%v)", given.JSON(), err)
	}
	secret := &corev1.Secret{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.Objects[0].Object, secret); err != nil {
		t.Fatal(err)
	}
	if secret.Namespace != protocol.AgentNamespace || secret.Name != protocol.DirectSecret || secret.Labels[v1.LabelSet] == "" {
		t.Errorf("the object is %s/%s with %v", secret.Namespace, secret.Name, secret.Labels)
	}
	access := &protocol.DirectAccess{}
	if err := json.Unmarshal(secret.Data[protocol.DirectKey], access); err != nil {
		t.Fatal(err)
	}
	return access, given.Digest
}

func TestContentOfAMembersSet(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Date(2026, 11, 1, 12, 1, 0, 0, time.UTC)
	key, err := keys.New(now)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := keys.Encode(keys.Set{key})
	if err != nil {
		t.Fatal(err)
	}
	name := types.NamespacedName{Namespace: "team", Name: "prod"}
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod"}, Spec: v1.ClusterSpec{AuthorizedEndpoint: v1.AuthorizedEndpoint{Server: "https://prod.example.com:6443"}}}
	session := func(id, revoked string) client.Object {
		data := map[string][]byte{"uid": []byte("u"), "direct": []byte(now.Add(time.Hour).Format(time.RFC3339)), "revoked": []byte(revoked)}
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "drover-system", Name: "drover-session-" + id, Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindSession}}, Data: data}
	}
	keysSecret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "drover-system", Name: signin.KeysSecret}, Data: map[string][]byte{signin.KeyOfKeys: raw}}
	hub := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster, keysSecret, session("b", "true"), session("a", "true")).Build()
	given := &deliveries{}
	issuer := signin.New(signin.Options{Issuer: "https://hub.example.com", Client: hub, Live: hub, Namespace: "drover-system", Now: func() time.Time { return now }, Log: logr.Discard(), Direct: signin.Direct{Path: "/k8s/clusters/"}})
	r := &Reconciler{Client: hub, Deliveries: given, Issuer: issuer, Now: func() time.Time { return now }}
	reconcile := func() ctrl.Result {
		t.Helper()
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	result := reconcile()
	access, digest := given.access(t, name)
	if access == nil || access.Issuer != "https://hub.example.com" || access.Audience != "https://hub.example.com/k8s/clusters/team/prod" || access.Host != "prod.example.com" ||
		access.Lifetime != 3600 || len(access.Denied) != 2 || access.Denied[0] != "a" || access.DenyAll || access.ValidUntil.Sub(now) != 74*time.Minute || result.RequeueAfter != 14*time.Minute {
		t.Fatalf("the member is given %+v, again in %s", access, result.RequeueAfter)
	}
	now = now.Add(10 * time.Minute)
	reconcile()
	if _, again := given.access(t, name); again != digest {
		t.Error("nothing has changed, and the member is given something else")
	}
	now = now.Add(5 * time.Minute)
	reconcile()
	if _, again := given.access(t, name); again == digest {
		t.Error("what the member has is not renewed")
	}
	for server, host := range map[string]string{"https://[a]": "", "https://[fd00::1]": "fd00::1"} { // the schema lets both pass
		cluster.Spec.AuthorizedEndpoint.Server = server
		if err := hub.Update(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
		reconcile()
		if access, _ := given.access(t, name); (access != nil) != (host != "") || access != nil && access.Host != host {
			t.Errorf("with the server %s the member is given %+v, want the host %q, and nothing without one", server, access, host)
		}
	}
	if err := hub.Delete(t.Context(), keysSecret); err != nil {
		t.Fatal(err)
	}
	if reconcile(); given.wanted != nil {
		t.Error("without keys the member keeps them")
	}
	r.Issuer = nil
	if reconcile(); given.wanted != nil || given.calls != 7 {
		t.Error("without sign-in there is direct access, or the store waits for its owner")
	}
}
