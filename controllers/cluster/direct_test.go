// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

func TestDirectAccessIsACondition(t *testing.T) {
	w := newWorld(t, testkit.Shared(t))
	outcome := delivery.Outcome{Stage: delivery.Pending}
	w.joined()
	for _, tt := range []struct {
		name   string
		server string
		secret string
		signIn bool
		stage  delivery.Outcome
		want   string // status and reason, empty for no condition
		told   string
	}{
		{"not asked for", "", "", true, delivery.Outcome{Stage: delivery.Applied}, "", ""},
		{"without sign-in", "https://a.example", "", false, delivery.Outcome{Stage: delivery.Pending}, "False SignInOff", "Warning SignInOff"},
		{"on its way: as it was", "https://a.example", "", true, delivery.Outcome{Stage: delivery.Pending}, "False SignInOff", ""},
		{"without a certificate", "https://a.example", "", true, delivery.Outcome{Stage: delivery.Applied}, "False CertificateMissing", "Warning CertificateMissing"},
		{"with a given one", "https://a.example", "tls", true, delivery.Outcome{Stage: delivery.Applied}, "True Delivered", ""},
		{"away: as it was", "https://a.example", "tls", true, delivery.Outcome{Stage: delivery.Away}, "True Delivered", ""},
		{"in conflict", "https://a.example", "tls", true, delivery.Outcome{Stage: delivery.Failed, Reason: v1.ReasonConflict}, "False Conflict", "Warning Conflict"},
		{"an agent that takes nothing", "https://a.example", "tls", true, delivery.Outcome{Stage: delivery.Refused, Reason: v1.ReasonAgentReadOnly}, "False AgentReadOnly", "Warning AgentReadOnly"},
		{"no longer asked for", "", "", true, delivery.Outcome{Stage: delivery.Applied}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testkit.Update(t, w.Client, w.cluster(), func(c *v1.Cluster) {
				c.Spec.AuthorizedEndpoint = v1.AuthorizedEndpoint{Server: tt.server, TLSSecretName: tt.secret}
			})
			outcome, w.r.Direct = tt.stage, nil
			if tt.signIn {
				w.r.Direct = func(types.NamespacedName) delivery.Outcome { return outcome }
			}
			_ = slices.Collect(drain(w.recorder))
			w.reconcile()
			got := ""
			if c := meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionDirectAccess); c != nil {
				got = string(c.Status) + " " + c.Reason
			}
			if got != tt.want {
				t.Errorf("the condition is %q, want %q", got, tt.want)
			}
			var told []string
			for event := range drain(w.recorder) {
				if strings.HasPrefix(event, "Warning ") {
					told = append(told, strings.Join(strings.SplitN(event, " ", 3)[:2], " "))
				}
			}
			if strings.Join(told, ",") != tt.told {
				t.Errorf("told is %q, want %q", told, tt.told)
			}
		})
	}
}

func TestMissingTokenReviewersAreReported(t *testing.T) {
	w := newWorld(t, testkit.Shared(t))
	agent, _ := w.joined()
	w.r.Direct = func(types.NamespacedName) delivery.Outcome { return delivery.Outcome{Stage: delivery.Applied} }
	testkit.Update(t, w.Client, w.cluster(), func(c *v1.Cluster) {
		c.Spec.AuthorizedEndpoint = v1.AuthorizedEndpoint{Server: "https://a.example", Mode: v1.AuthorizedEndpointAPIServer}
	})
	both := w.cluster()
	both.Spec.AuthorizedEndpoint.TLSSecretName = "tls"
	if err := w.Client.Update(t.Context(), both); err == nil || !strings.Contains(err.Error(), "if mode is APIServer") {
		t.Errorf("a certificate of the agent, which serves no user, is taken: %v", err)
	}
	w.reconcile()
	if !strings.Contains(string(w.secret(registration.RegistrationSecret(w.name)).Data[registration.KeyManifest]), v1.AnnotationDirectAccess+": APIServer") {
		t.Error("the manifest does not say that API servers ask")
	}
	is := func(want, message string) {
		t.Helper()
		c := meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionDirectAccess)
		if c == nil || string(c.Status)+" "+c.Reason != want || !strings.Contains(c.Message, message) {
			t.Errorf("the condition is %+v, want %s", c, want)
		}
	}
	is("False CertificateMissing", "")
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	agent.Report(func(r *protocol.Report) { r.DirectAuthority = string(ca.Cert) })
	w.until(func(s members.State) bool { return s.Report.DirectAuthority != "" })
	w.says(agent, protocol.Deployment{Digest: w.digest(), RolledOut: true, Direct: "daemonsets is forbidden"})
	is("False DaemonSetMissing", "daemonsets is forbidden. Apply the manifest in Secret")
	w.says(agent, protocol.Deployment{Digest: w.digest(), RolledOut: true})
	is("True Delivered", "127.0.0.1:6440")
}
