// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// restoredHub returns a hub with two Clusters with the agents' Secrets of a backup, one Cluster that has joined since,
// and a Cluster that never joined.
func restoredHub(t *testing.T, funcs interceptor.Funcs) *cli.Hub {
	t.Helper()
	var objects []client.Object
	for name, owner := range map[string]types.UID{"alpha": "old", "beta": "old", "joined": "joined-uid", "never": ""} {
		cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(name + "-uid")}}
		objects = append(objects, cluster)
		if owner == "" {
			continue
		}
		secret := &corev1.Secret{}
		registration.WriteIdentity(secret, cluster, registration.AgentIdentity{
			PublicKey: testkit.Key(t).Public().(ed25519.PublicKey), ClusterUID: "member-" + name, OwnerUID: owner, Joined: time.Unix(0, 0)})
		secret.OwnerReferences = nil
		objects = append(objects, secret)
	}
	c := fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
	return &cli.Hub{WithWatch: c, Workspace: "team-a"}
}

func adopted(t *testing.T, h *cli.Hub) string {
	t.Helper()
	var secrets corev1.SecretList
	if err := h.List(t.Context(), &secrets); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range secrets.Items {
		if id, err := registration.ReadIdentity(&secrets.Items[i]); err != nil {
			t.Error(err)
		} else if id.FormerOwner == "old" && strings.HasPrefix(secrets.Items[i].Name, strings.TrimSuffix(string(id.OwnerUID), "-uid")) {
			names = append(names, secrets.Items[i].Name)
		}
	}
	return strings.Join(names, " ")
}

func TestAdopt(t *testing.T) {
	tests := map[string]struct {
		names   []string
		act     bool
		adopted string
		want    []string // in the output
		err     string
	}{
		"all are listed, and nothing is changed": {nil, false, "", []string{"alpha", "member-beta", "its agent already", "no Secret never-agent", "adopt the 2 agents above, run the command again with --yes"}, ""},
		"all are adopted":                        {nil, true, "alpha-agent beta-agent", []string{"Adopted: 2."}, ""},
		"one is adopted":                         {[]string{"beta"}, true, "beta-agent", []string{"Adopted: 1."}, ""},
		"one that has joined needs nothing":      {[]string{"joined"}, true, "", []string{"its agent already", "Nothing was changed."}, ""},
		"one that never joined is an error":      {[]string{"beta", "never"}, true, "beta-agent", []string{"Adopted: 1."}, "adopt the agent of Cluster team-a/never: no agent is known"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := restoredHub(t, interceptor.Funcs{})
			for range 2 { // a second run changes nothing
				found, err := candidates(t.Context(), h, "", tt.names)
				if err != nil {
					t.Fatal(err)
				}
				var out bytes.Buffer
				err = adopt(t.Context(), h, &out, found, adoption{act: tt.act, strict: tt.names != nil})
				if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				for _, want := range tt.want {
					if !strings.Contains(out.String(), want) {
						t.Errorf("%q is not in:\n%s", want, out.String())
					}
				}
				if got := adopted(t, h); got != tt.adopted {
					t.Errorf("adopted %q, want %q", got, tt.adopted)
				}
				tt.want = nil
			}
		})
	}
	t.Run("a Secret that was changed since it was listed is not written", func(t *testing.T) {
		h := restoredHub(t, interceptor.Funcs{})
		found, err := candidates(t.Context(), h, "", []string{"alpha"})
		if err != nil {
			t.Fatal(err)
		}
		changed := found[0].secret.DeepCopy()
		changed.Data["public-key"] = []byte("another")
		if err := h.Update(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
		if err := adopt(t.Context(), h, &bytes.Buffer{}, found, adoption{act: true, strict: true}); err == nil {
			t.Error("a key that was not listed is adopted")
		}
	})
	t.Run("a refusal of the hub names the Cluster, and the others go on", func(t *testing.T) {
		h := restoredHub(t, interceptor.Funcs{Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if o.GetName() == "alpha-agent" {
				return context.DeadlineExceeded
			}
			return c.Update(ctx, o, options...)
		}})
		found, err := candidates(t.Context(), h, "team-a", nil)
		if err != nil {
			t.Fatal(err)
		}
		err = adopt(t.Context(), h, &bytes.Buffer{}, found, adoption{act: true})
		if err == nil || !strings.Contains(err.Error(), "Cluster team-a/alpha") || adopted(t, h) != "beta-agent" {
			t.Errorf("%v, adopted %q", err, adopted(t, h))
		}
	})
}
