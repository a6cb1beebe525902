// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// A report of a member's agent about the guards reaches the condition of its Cluster, and of no other Cluster.
func TestGuardsOfAMemberAreAConditionOfItsCluster(t *testing.T) {
	env := testkit.Shared(t)
	w := (&world{Env: env, t: t, workspace: env.Workspace(t), other: env.Workspace(t), clusters: true}).begin()
	agent := w.member("prod", nil)
	w.member("calm", nil)
	guards := func(name, status, reason string) {
		t.Helper()
		w.eventually(func(ctx context.Context) error {
			cluster := &v1.Cluster{ObjectMeta: w.meta(name)}
			if err := w.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
				return err
			}
			c := meta.FindStatusCondition(cluster.Status.Conditions, v1.ConditionGuardsApplied)
			if c == nil || string(c.Status) != status || c.Reason != reason {
				return fmt.Errorf("GuardsApplied of %s is %+v, want %s %s", name, c, status, reason)
			}
			return nil
		})
	}
	guards("prod", "True", v1.ReasonGuardsApplied)
	guards("calm", "True", v1.ReasonGuardsApplied)

	held, found := agent.Sets.Get(set.Guards)
	if !found {
		t.Fatalf("the member has the sets %q, want %q among them", agent.Sets.Held(), set.Guards)
	}
	agent.Sets.SetState(protocol.SetState{ID: held.ID, Digest: held.Digest, Phase: protocol.SetConflict})
	guards("prod", "False", v1.ReasonConflict)
	guards("calm", "True", v1.ReasonGuardsApplied)
	agent.Sets.SetState(protocol.SetState{ID: held.ID, Digest: held.Digest, Phase: protocol.SetApplied})
	guards("prod", "True", v1.ReasonGuardsApplied)
}
