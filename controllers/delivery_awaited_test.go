// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

func TestLeaderNamesTheOwnersItWaitsFor(t *testing.T) {
	t.Parallel()
	hub := fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).WithObjects(
		&v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "reconciled"}},
		&v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "stuck"}}).Build()
	key := func(name string) delivery.Key {
		return delivery.Key{Kind: set.ClusterBinding, Namespace: "team", Name: name}
	}
	said := make(chan []delivery.Key, 100)
	c := counter{hub: hub, Store: delivery.New(delivery.Options{
		State:    func(types.NamespacedName) members.State { return members.State{} },
		Observer: delivery.Observer{Awaited: func(keys []delivery.Key) { said <- keys }}, Log: logr.Discard(),
	})}
	c.Replace(key("reconciled"), nil)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = c.Start(ctx) })
	defer running.Wait()
	defer stop()
	want := func(want ...delivery.Key) {
		t.Helper()
		for {
			select {
			case got := <-said:
				if slices.Equal(got, want) {
					return
				}
			case <-time.After(testkit.Patience * 20 * time.Second):
				t.Fatalf("want that the leader says that it waits for %v", want)
			}
		}
	}
	want(key("stuck"))
	c.Replace(key("stuck"), nil)
	want()
}
