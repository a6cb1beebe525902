// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
)

// applied returns a registration Secret as the API server stores it, and a function that reports whether a Secret is up
// to date.
func applied(manifest string) (*corev1.Secret, func(*corev1.Secret) bool) {
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "uid"}}
	want := registration.ApplySecret(cluster, registration.Token{Value: strings.Repeat("t", 40),
		Created: time.Unix(1_800_000_000, 0)},
		registration.Content{ManifestURL: "https://hub/v1/import/t.yaml", Command: "kubectl apply",
			Manifest: []byte(manifest)})
	secret := &corev1.Secret{Data: want.Data}
	secret.Labels, secret.Annotations = want.Labels, want.Annotations
	return secret.DeepCopy(), func(s *corev1.Secret) bool { return registration.UpToDate(s, want) }
}

func trim(t *testing.T, secret *corev1.Secret) *corev1.Secret {
	t.Helper()
	trimmed, err := registration.Trim(secret.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	return trimmed.(*corev1.Secret)
}

func TestTrim(t *testing.T) {
	t.Run("the token of a registration Secret stays, and its manifest is dropped", func(t *testing.T) {
		secret, _ := applied("manifest")
		trimmed := trim(t, secret)
		if len(trimmed.Data) != 1 || string(trimmed.Data[registration.KeyToken]) != strings.Repeat("t", 40) {
			t.Errorf("data %v, want only the token", trimmed.Data)
		}
	})
	t.Run("trimming twice gives the same as trimming once", func(t *testing.T) {
		secret, _ := applied("manifest")
		once := trim(t, secret)
		if twice := trim(t, once); !reflect.DeepEqual(once, twice) {
			t.Errorf("once %v, twice %v", once, twice)
		}
	})
	t.Run("little remains of a Secret that a user labelled", func(t *testing.T) {
		for _, kind := range registration.CachedKinds() {
			secret := &corev1.Secret{Data: map[string][]byte{}}
			secret.Labels, secret.Annotations = map[string]string{v1.LabelSecretKind: kind}, map[string]string{}
			for _, key := range []string{"token", "public-key", "cluster-uid", "token-hash", "owner-uid", "joined",
				"former-owner-uid"} {
				secret.Data[key] = make([]byte, 100<<10)
			}
			for _, key := range []string{"token-hash", "token-created", "token-used", "plan-digest", "plan-note", "other"} {
				secret.Annotations[v1.Group+"/"+key] = strings.Repeat("x", 40<<10)
			}
			for i := range 3000 {
				secret.Labels["example.com/"+strconv.Itoa(i)] = "x"
				secret.Finalizers = append(secret.Finalizers, "example.com/"+strconv.Itoa(i))
				secret.OwnerReferences = append(secret.OwnerReferences, metav1.OwnerReference{APIVersion: v1.GroupVersion.String(),
					Kind: "Cluster", Name: strings.Repeat("x", i), UID: "x"})
			}
			raw, err := json.Marshal(trim(t, secret))
			if err != nil || len(raw) > 8<<10 {
				t.Errorf("%s: %d bytes are kept, want 8 KiB at most (%v)", kind, len(raw), err)
			}
		}
	})
	t.Run("nothing remains of a Secret that only has Drover's label", func(t *testing.T) {
		secret := &corev1.Secret{Data: map[string][]byte{"token": make([]byte, 1<<20), "more": []byte("more")}}
		secret.Labels = map[string]string{v1.LabelSecretKind: v1.SecretKindRegistration}
		if trimmed := trim(t, secret); len(trimmed.Data) != 0 {
			t.Errorf("%d values remain, want none", len(trimmed.Data))
		}
	})
}

func TestUpToDate(t *testing.T) {
	changes := map[string]struct {
		change func(*corev1.Secret)
		want   bool
	}{
		"as it was applied":          {func(*corev1.Secret) {}, true},
		"with another manager's key": {func(s *corev1.Secret) { s.Data["more"] = []byte("more") }, true},
		"with another manifest": {
			func(s *corev1.Secret) { s.Data[registration.KeyManifest] = []byte("other") }, false,
		},
		"with another command": {
			func(s *corev1.Secret) { s.Data[registration.KeyCommand] = []byte("other") }, false,
		},
		"with another token": {
			func(s *corev1.Secret) { s.Data[registration.KeyToken] = []byte("other") }, false,
		},
		"without its manifest": {
			func(s *corev1.Secret) { delete(s.Data, registration.KeyManifest) }, false,
		},
		"without an annotation":                    {func(s *corev1.Secret) { s.Annotations = nil }, false},
		"without a label, if it is still Drover's": {func(s *corev1.Secret) { delete(s.Labels, v1.LabelCluster) }, false},
		"with a user's digest in place of the manifest": {func(s *corev1.Secret) {
			original, _ := applied("manifest")
			trimmed, _ := registration.Trim(original)
			for key, digest := range trimmed.(*corev1.Secret).StringData {
				s.Data[key] = []byte(digest)
			}
			delete(s.Data, registration.KeyManifest)
		}, false},
	}
	for name, tt := range changes {
		for _, cached := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", read live", true: ", read from the cache"}[cached], func(t *testing.T) {
				secret, upToDate := applied("manifest")
				tt.change(secret)
				if cached {
					secret = trim(t, secret)
				}
				if got := upToDate(secret); got != tt.want {
					t.Errorf("up to date %t, want %t", got, tt.want)
				}
			})
		}
	}
	t.Run("moving the start of one value to the end of the previous one makes a difference", func(t *testing.T) {
		secret, upToDate := applied("manifest")
		secret.Data[registration.KeyCommand] = slices.Concat(secret.Data[registration.KeyCommand], []byte("m"))
		secret.Data[registration.KeyManifest] = []byte("anifest")
		if upToDate(secret) {
			t.Error("the Secret is up to date, want it outdated")
		}
	})
}
