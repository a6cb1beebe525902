// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// bindsAll reports a binding of every user to every Cluster.
func bindsAll(context.Context, index.Principals, types.NamespacedName, time.Time) (bool, error) {
	return true, nil
}

// A user with a single binding, possibly in just one project, must not be able to read a whole member merely because
// its agent serves all users as the same viewer.
func TestBindingAloneDoesNotOpenAReadOnlyMember(t *testing.T) {
	for name, tt := range map[string]struct {
		spec, agent v1.AgentProfile
		connected   bool
		open        bool
	}{
		"that is Full": {v1.ProfileFull, v1.ProfileFull, true, true},
		// the request is then told that the member is not connected
		"that is away":     {v1.ProfileFull, v1.ProfileFull, false, true},
		"that is ReadOnly": {v1.ProfileReadOnly, v1.ProfileReadOnly, true, false},
		"whose spec says ReadOnly, before its manifest":    {v1.ProfileReadOnly, v1.ProfileFull, true, false},
		"whose agent says ReadOnly, whatever the spec":     {v1.ProfileFull, v1.ProfileReadOnly, true, false},
		"whose spec says ReadOnly, before its agent comes": {v1.ProfileReadOnly, v1.ProfileFull, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "edge", UID: "uid"}}
				cluster.Spec.Agent.Profile = tt.spec
				registry := members.New(logr.Discard(), time.Now)
				t.Cleanup(registry.Close)
				m := transports{
					agents: registry.Transports, states: registry.States,
					clusters: fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).WithObjects(cluster).Build(),
				}
				key := types.NamespacedName{Namespace: "team", Name: "edge"}
				if tt.connected {
					report := testkit.HealthyReport()
					if tt.agent == v1.ProfileReadOnly {
						report.Profile = string(tt.agent)
					}
					agent := testkit.ConnectAgent(t, report)
					registry.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: "team", Name: "edge", UID: "uid"}, Key: "key"},
						agent.Session)
					synctest.Wait()
				}
				id, err := identity.New(authenticationv1.UserInfo{Username: "alice"})
				if err != nil {
					t.Fatal(err)
				}
				open, err := bound(bindsAll, m.alike, time.Now)(t.Context(), id, key)
				if err != nil || open != tt.open {
					t.Errorf("the way is open %t, error %v, want %t", open, err, tt.open)
				}
			})
		})
	}
}
