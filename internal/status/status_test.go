// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestCommit(t *testing.T) {
	env := testkit.Shared(t)
	event := status.Event{Reason: "Seen", Action: "Look", Message: "100 %s"}
	for name, tc := range map[string]struct {
		change func(*v1.Cluster)
		patch  error // the API server's error; nil for its real answer
		gone   bool
		// want
		patches int
		events  int
		failed  bool
		version string
	}{
		"an unchanged object is not written": {change: func(*v1.Cluster) {}, events: 1},
		"a changed object is written, and then the event is sent": {
			change: func(c *v1.Cluster) { c.Status.Version = "v1" }, patches: 1,
			events: 1, version: "v1"},
		"after a failed write no event is sent": {change: func(c *v1.Cluster) { c.Status.Version = "v1" },
			patch: errors.New("boom"), patches: 1, failed: true},
		"a deleted object is not an error": {change: func(c *v1.Cluster) { c.Status.Version = "v1" }, gone: true,
			patches: 1, events: 1},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: env.Workspace(t), Name: "member"}}
			env.Apply(t, cluster)
			patches := 0
			c := interceptor.NewClient(env.Client, interceptor.Funcs{
				SubResourcePatch: func(
					ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch,
					opts ...client.SubResourcePatchOption,
				) error {
					patches++
					if tc.patch != nil {
						return tc.patch
					}
					return c.SubResource(sub).Patch(ctx, o, patch, opts...)
				},
			})
			recorder := events.NewFakeRecorder(10)
			update := status.Begin(cluster)
			update.Event(event)
			tc.change(cluster)
			if tc.gone {
				if err := env.Client.Delete(t.Context(), cluster.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			err := update.Commit(t.Context(), c, recorder)
			if (err != nil) != tc.failed || tc.failed && !errors.Is(err, tc.patch) {
				t.Errorf("got error %v, want failure: %t", err, tc.failed)
			}
			if patches != tc.patches || len(recorder.Events) != tc.events {
				t.Errorf("got %d patches and %d events, want %d and %d", patches, len(recorder.Events), tc.patches, tc.events)
			}
			if tc.events > 0 {
				if got, want := <-recorder.Events, "Normal Seen 100 %s"; got != want {
					t.Errorf("got event %q, want %q", got, want)
				}
			}
			if tc.version == "" {
				return
			}
			stored := &v1.Cluster{}
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(cluster), stored); err != nil ||
				stored.Status.Version != tc.version {
				t.Errorf("got the stored version %q, %v, want %q", stored.Status.Version, err, tc.version)
			}
		})
	}
	t.Run("the writes of others stay", func(t *testing.T) {
		cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: env.Workspace(t), Name: "member"}}
		env.Apply(t, cluster)
		update := status.Begin(cluster)
		other := cluster.DeepCopy()
		other.Status.Distribution = "k3s"
		if err := env.Client.Status().Update(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		cluster.Status.Version = "v1"
		if err := update.Commit(t.Context(), env.Client, events.NewFakeRecorder(1)); err != nil {
			t.Fatal(err)
		}
		if cluster.Status.Distribution != "k3s" || cluster.Status.Version != "v1" {
			t.Errorf("got status %+v, want the fields of both writers", cluster.Status)
		}
	})
	t.Run("an event is recorded once", func(t *testing.T) {
		recorder := events.NewFakeRecorder(10)
		update := status.Begin(&v1.Cluster{})
		update.Event(status.Event{Warning: true, Reason: "Lost", Message: "gone"})
		for range 2 {
			if err := update.Commit(t.Context(), env.Client, recorder); err != nil {
				t.Fatal(err)
			}
		}
		if len(recorder.Events) != 1 || <-recorder.Events != "Warning Lost gone" {
			t.Error("got other events, want one warning")
		}
	})
}
