// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/drover-dev/drover/controllers/authority"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

func TestPublisherPublishesCertificatesWithoutKeys(t *testing.T) {
	w := newWorld(t, testkit.Shared(t))
	p := &authority.Publisher{
		Client: w.Client, Settings: w.settings,
		ConfigMap: types.NamespacedName{Namespace: w.keeper.Secret.Namespace, Name: trust.AuthorityConfigMap},
	}
	published := func() *corev1.ConfigMap {
		t.Helper()
		if _, err := p.Reconcile(t.Context(), ctrl.Request{}); err != nil {
			t.Fatal(err)
		}
		found := &corev1.ConfigMap{}
		if err := w.Client.Get(t.Context(), p.ConfigMap, found); err != nil {
			t.Fatal(err)
		}
		return found
	}
	if _, err := p.Reconcile(t.Context(), ctrl.Request{}); err != nil {
		t.Fatalf("nothing is loaded yet: %v", err)
	}
	before, after := w.changed("1")
	first := published()
	for _, authority := range []trust.KeyPair{before, after} {
		if got := first.Data["ca.crt"]; !strings.Contains(got, string(authority.Cert)) {
			t.Errorf("after a change both are to be trusted: got\n%s\nwant\n%s", got, authority.Cert)
		}
	}
	if got := first.Data["ca.crt"]; got != string(w.trust.Bundle()) {
		t.Errorf("the published certificates are not those that agents get: %s", got)
	}
	if got, want := first.Data["servers"], strings.Join(w.settings().Servers, "\n"); got != want || got == "" {
		t.Errorf("the published addresses are %q, want those that agents get: %q", got, want)
	}
	if len(first.Data) != 2 || len(first.BinaryData) != 0 || strings.Contains(first.Data["ca.crt"], "PRIVATE") {
		t.Errorf("%v is published, want certificates and addresses only", first.Data)
	}
	if again := published(); again.ResourceVersion != first.ResourceVersion {
		t.Error("what has not changed is written again")
	}
	first.Data["ca.crt"] = "another"
	if err := w.Client.Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if got := published().Data["ca.crt"]; got != string(w.trust.Bundle()) {
		t.Errorf("a foreign change stays: %s", got)
	}
	if err := w.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	published()
}
