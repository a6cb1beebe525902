// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
)

// fakeReader stands for an API server or a cache with Secrets. It counts the reads.
type fakeReader struct {
	client.Reader
	secrets map[string]*corev1.Secret
	reads   int
}

func (s *fakeReader) Get(
	_ context.Context, name types.NamespacedName, object client.Object, _ ...client.GetOption,
) error {
	s.reads++
	found := s.secrets[name.Name]
	if found == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name.Name)
	}
	found.DeepCopyInto(object.(*corev1.Secret))
	return nil
}

type world struct {
	reader      *index.SecretReader
	cache, live *fakeReader
}

func newWorld() *world {
	w := &world{cache: &fakeReader{secrets: map[string]*corev1.Secret{}},
		live: &fakeReader{secrets: map[string]*corev1.Secret{}}}
	w.reader = &index.SecretReader{Reader: w.cache, Live: w.live}
	return w
}

// store puts a Secret into the API server and, like an event, into the cache.
func (w *world) store(t *testing.T, name, version string, bytes int) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, ResourceVersion: version,
			Labels:      map[string]string{v1.LabelProject: "web", "mine": "too"},
			Annotations: map[string]string{"last-applied": strings.Repeat("a", 1000), v1.AnnotationExceptNamespaces: "a,b"}},
		Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"key": make([]byte, bytes)},
	}
	w.live.secrets[name] = secret.DeepCopy()
	outline, err := index.SecretOutline(secret)
	if err != nil {
		t.Fatal(err)
	}
	again, err := index.SecretOutline(outline)
	if err != nil || again != outline {
		t.Errorf("a second transform changed the Secret, error %v, want it unchanged", err)
	}
	w.cache.secrets[name] = outline.(*corev1.Secret)
}

func (w *world) get(t *testing.T, name string) (*corev1.Secret, error) {
	t.Helper()
	secret := &corev1.Secret{}
	err := w.reader.Get(t.Context(), types.NamespacedName{Namespace: "team", Name: name}, secret)
	return secret, err
}

func TestReader(t *testing.T) {
	t.Run("the cache has the fields for decisions, but no content", func(t *testing.T) {
		w := newWorld()
		w.store(t, "registry", "1", 1<<20)
		outline := w.cache.secrets["registry"]
		if len(outline.Data) > 0 || len(outline.Annotations) > 0 || outline.Labels["mine"] != "" || outline.Size() > 500 {
			t.Errorf("the cache keeps %d bytes of %v, want no content", outline.Size(), outline)
		}
		if outline.Labels[v1.LabelProject] != "web" || outline.ResourceVersion != "1" ||
			outline.Type != corev1.SecretTypeOpaque {
			t.Errorf("the cache keeps %v, want the label, the version and the type", outline)
		}
	})
	t.Run("content is read once for each version", func(t *testing.T) {
		w := newWorld()
		for _, version := range []string{"1", "2"} {
			w.store(t, "registry", version, 10)
			for range 3 {
				got, err := w.get(t, "registry")
				if err != nil || got.ResourceVersion != version || len(got.Data["key"]) != 10 || got.Labels["mine"] != "too" ||
					got.Annotations[v1.AnnotationExceptNamespaces] != "a,b" || got.Annotations["last-applied"] != "" {
					t.Fatalf("got %v, %v, want the whole Secret, without the annotations of others", got, err)
				}
				got.Data["key"] = []byte("the caller may change what it got")
			}
		}
		if w.live.reads != 2 {
			t.Errorf("got %d reads, want one for each version", w.live.reads)
		}
	})
	t.Run("a Secret that is too large is never read", func(t *testing.T) {
		w := newWorld()
		w.store(t, "large", "1", index.MaxSecretData+1)
		_, err := w.get(t, "large")
		var tooLarge *index.SecretTooLargeError
		if !errors.As(err, &tooLarge) || !strings.Contains(err.Error(), "at most 256 KiB") || w.live.reads > 0 {
			t.Errorf("got %v after %d reads, want the limit and no read", err, w.live.reads)
		}
	})
	t.Run("a Secret that has become too large is not returned", func(t *testing.T) {
		w := newWorld()
		w.store(t, "grown", "1", 10)
		w.live.secrets["grown"].Data["key"] = make([]byte, index.MaxSecretData+1)
		var tooLarge *index.SecretTooLargeError
		if _, err := w.get(t, "grown"); !errors.As(err, &tooLarge) {
			t.Error(err)
		}
	})
	t.Run("a Secret without the label is not found", func(t *testing.T) {
		w := newWorld()
		w.store(t, "unlabelled", "1", 10)
		delete(w.cache.secrets, "unlabelled")
		if _, err := w.get(t, "unlabelled"); !apierrors.IsNotFound(err) || w.live.reads > 0 {
			t.Errorf("got %v after %d reads, want not found and no read", err, w.live.reads)
		}
	})
	t.Run("the remembered content is limited", func(t *testing.T) {
		w := newWorld()
		for i := range 200 { // 50 MiB
			w.store(t, fmt.Sprint(i), "1", index.MaxSecretData-1000)
			if _, err := w.get(t, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		w.live.reads = 0
		for i := range 200 {
			if _, err := w.get(t, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		if w.live.reads < 130 {
			t.Errorf("only %d of 200 Secrets were read again, want more because memory is limited", w.live.reads)
		}
	})
}

// The cache lags behind the API server. So a Secret that was chosen in the cache may have been replaced by another
// Secret, which no user has assigned to a project or a plan.
func TestSecretThatIsNoLongerTheChosenOneIsNotRead(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*corev1.Secret){
		"another Secret with the same name": func(s *corev1.Secret) { s.UID = "another" },
		"a Secret that lost the label":      func(s *corev1.Secret) { delete(s.Labels, v1.LabelProject) },
		"a Secret of another project":       func(s *corev1.Secret) { s.Labels[v1.LabelProject] = "other" },
		"a Secret that belongs to Drover in the meantime": func(s *corev1.Secret) {
			s.Labels[v1.LabelSecretKind] = v1.SecretKindRegistration
		},
	} {
		w := newWorld()
		w.store(t, "login", "1", 10)
		now := w.live.secrets["login"]
		now.ResourceVersion = "2"
		change(now)
		if _, err := w.get(t, "login"); !apierrors.IsNotFound(err) {
			t.Errorf("%s: got %v, want not found", what, err)
		}
	}
}
