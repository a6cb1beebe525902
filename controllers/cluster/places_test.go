// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestPlaces(t *testing.T) {
	at := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	object := func(workspace string, i int) client.Object {
		return &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: fmt.Sprintf("c%d", i), CreationTimestamp: metav1.NewTime(at.Add(time.Duration(i/2) * time.Second))}}
	}
	p := &Places{most: 3}
	for _, i := range rand.Perm(6) { // a manager that has just started sees them in any order
		p.add(object("a", i))
		p.add(object("a", i))
	}
	p.add(object("b", 9))
	for i := range 6 {
		if got := p.has(object("a", i)); got != (i < 3) {
			t.Errorf("the Cluster that was the %d. to be made has a place: %t", i+1, got)
		}
	}
	if !p.has(object("b", 9)) || !p.has(object("b", 10)) {
		t.Error("a workspace pays for another one")
	}
	if next, found := p.remove(object("a", 5)); found {
		t.Errorf("%s gets the place of one that had none", next)
	}
	if next, found := p.remove(object("a", 0)); !found || next.Name != "c3" || !p.has(object("a", 3)) {
		t.Errorf("a place that became free goes to %v, %t", next, found)
	}
	for i := range 10 {
		p.remove(object("a", i))
		p.remove(object("b", i))
	}
	if len(p.workspaces) > 0 {
		t.Errorf("kept for ever: %v", p.workspaces)
	}
	if none := (&Places{}); !none.has(object("a", 1000)) {
		t.Error("without a bound there is one")
	}
}

func TestClusterBeyondTheLimitGetsNoToken(t *testing.T) {
	in := &input{cluster: &v1.Cluster{}, name: types.NamespacedName{Namespace: "team-a", Name: "one-more"}, tooMany: 1000}
	got := decideRegistered(in)
	if got.ok || got.reason != v1.ReasonTooManyClusters || !got.stalled || !strings.Contains(got.message, "limits.workspace.clusters") || !strings.Contains(got.message, "1000") {
		t.Errorf("got %+v, want TooManyClusters, stalled, with the name and value of the limit", got)
	}
	// there is no client, because it must not even try
	if err := (&Reconciler{}).register(t.Context(), in, nil, false); err != nil || in.token.Value != "" {
		t.Errorf("token %q, %v", in.token.Value, err)
	}
}
