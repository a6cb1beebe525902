// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

func testNewLeader(t *testing.T, w *world) {
	a, b := w.member("a", nil), w.member("b", nil)
	w.plan("k3s")
	w.has(a, "k3s", false)
	says(a, "k3s", v1.ReasonApplying, 2, 1, 1)
	w.reads("k3s", func(s *v1.PlanStatus) bool { return s.Nodes != nil && s.Nodes.Complete == 1 })
	p := &v1.Plan{ObjectMeta: w.meta("k3s")}
	w.stop()
	if err := w.Client.Status().Patch(t.Context(), p, client.RawPatch("application/merge-patch+json", []byte(`{"status":null}`))); err != nil {
		t.Fatal(err)
	}
	calls := len(a.Sets.Calls())
	says(a, "k3s", v1.ReasonApplying, 2, 2, 0)
	w.lead()
	w.reads("k3s", func(s *v1.PlanStatus) bool { return s.Nodes != nil && s.Nodes.Complete == 2 })
	if got := a.Sets.Calls(); len(got) != calls {
		t.Errorf("the member was sent again what it has: %v", got[calls:])
	}
	w.lacks(b, "k3s")
	says(a, "k3s", v1.ReasonComplete, 2, 2)
	w.has(b, "k3s", false)
}

func testPlanDeletedWithoutALeader(t *testing.T, w *world) {
	a := w.member("a", nil)
	w.plan("k3s")
	w.has(a, "k3s", false)
	w.stop()
	if err := w.Client.Delete(t.Context(), &v1.Plan{ObjectMeta: w.meta("k3s")}); err != nil {
		t.Fatal(err)
	}
	w.lead()
	w.eventually(func(context.Context) error {
		if claim, _ := w.claim("a", "k3s"); claim != "" || delivered(a, "k3s") != nil {
			return fmt.Errorf("claim %q, delivered %v", claim, delivered(a, "k3s"))
		}
		return nil
	})
}

func testChannelsOfTheConfiguration(t *testing.T, w *world) {
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer server.Close()
	refused := func(name, message string) {
		w.plan(name, func(s *v1.PlanSpec) { s.Version, s.Channel = "", server.URL+"/"+name })
		w.reads(name, func(s *v1.PlanStatus) bool {
			c := meta.FindStatusCondition(s.Conditions, v1.ConditionLatestResolved)
			return c != nil && c.Reason == v1.ReasonChannelFailed && strings.Contains(c.Message, message)
		})
	}
	refused("public", "or set channels.private in the manager's configuration")
	w.stop()
	w.settings = ", channels: {private: true}"
	w.lead()
	refused("private", "not to an address of this machine")
	if asked {
		t.Error("a server on this machine was asked")
	}
}

func testAManagerThatHasJustBegun(t *testing.T, w *world) {
	w.stop()
	w.started = time.Now()
	w.lead()
	w.cluster("a", nil)
	b := w.member("b", nil)
	w.plan("k3s")
	w.becomes("k3s", v1.ReasonApplying)
	w.lacks(b, "k3s")
	a := w.connect("a", testkit.NewSets())
	w.has(a, "k3s", false)
	w.lacks(b, "k3s")
}
