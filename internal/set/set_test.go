// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package set_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/set"
)

func content(data map[string]any) set.Content {
	return set.Content{Objects: []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x"}, "data": data,
	}}}}
}

func newSet(t *testing.T, id string, end *time.Time, c set.Content) *set.Set {
	t.Helper()
	s, err := set.New(id, end, c)
	if err != nil {
		t.Fatalf("make set %s: %v", id, err)
	}
	return s
}

func TestDigestOfASet(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	first := content(map[string]any{"a": "<1>", "b": int64(2), "c": 1.5, "d": 1.0, "e": `"digest":""`})
	base := newSet(t, "crtb/a", &now, first)
	t.Run("it does not change when the set is encoded and decoded", func(t *testing.T) {
		got, c, err := set.Parse(base.JSON())
		if err != nil || got.ID != base.ID || got.Digest != base.Digest || !got.ExpiresAt.Equal(now) ||
			!bytes.Equal(got.JSON(), base.JSON()) {
			t.Errorf("got %+v and %v, want %+v", got, err, base)
		}
		if want := first.Objects[0].GetName(); len(c.Objects) != 1 || c.Objects[0].GetName() != want {
			t.Errorf("the content is %+v, want one object %s", c, want)
		}
	})
	t.Run("it is the same as in earlier versions, so that no set is sent again after an upgrade",
		func(t *testing.T) {
			const want = `{"id":"crtb/a","digest":"DIGEST","expiresAt":"2026-11-21T12:00:00Z","content":` +
				`{"objects":[{"apiVersion":"v1","data":{"a":"1"},"kind":"ConfigMap","metadata":{"name":"x"}}]}}`
			const digest = "da70eaf10eff8e33d72a30fa53d96cde7fb69cea8b7c0ba085ad6a7b1b0d3618"
			s := newSet(t, "crtb/a", &now, content(map[string]any{"a": "1"}))
			if got := strings.Replace(string(s.JSON()), s.Digest, "DIGEST", 1); got != want || s.Digest != digest {
				t.Errorf("got %s with the digest %s, want %s with %s", got, s.Digest, want, digest)
			}
		})
	t.Run("it does not depend on the time zone of the expiry", func(t *testing.T) {
		elsewhere := now.In(time.FixedZone("x", 7200))
		if got := newSet(t, "crtb/a", &elsewhere, first); !reflect.DeepEqual(got, base) {
			t.Errorf("got %+v, want %+v", got, base)
		}
	})
	t.Run("it depends on ID, expiry and content", func(t *testing.T) {
		later := now.Add(time.Second)
		for name, other := range map[string]*set.Set{
			"id": newSet(t, "crtb/b", &now, first), "end": newSet(t, "crtb/a", &later, first),
			"no end": newSet(t, "crtb/a", nil, first), "content": newSet(t, "crtb/a", &now, content(map[string]any{"a": "2"})),
		} {
			if other.Digest == base.Digest {
				t.Errorf("a set that differs in %s has the same digest, want another one", name)
			}
		}
	})
	t.Run("a set that does not match its digest is refused", func(t *testing.T) {
		for name, raw := range map[string]string{
			"other content":           strings.Replace(string(base.JSON()), "1.5", "1.6", 1),
			"another ID":              strings.Replace(string(base.JSON()), "crtb/a", "crtb/b", 1),
			"an invalid ID":           strings.Replace(string(base.JSON()), "crtb/a", "crtb/..", 1),
			"a text that is not JSON": "hunter2",
		} {
			if _, _, err := set.Parse([]byte(raw)); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: got %v, want an error without the content", name, err)
			}
		}
	})
	t.Run("a set with a field of a later version is refused, because the field would be lost", func(t *testing.T) {
		raw := `{"id":"crtb/a","digest":"","content":{"later":["x"]}}`
		raw = strings.Replace(raw, `"digest":""`, fmt.Sprintf(`"digest":"%x"`, sha256.Sum256([]byte(raw))), 1)
		if _, _, err := set.Parse([]byte(raw)); err == nil {
			t.Error("the set was accepted, want an error")
		}
	})
	t.Run("a set that is too large is refused", func(t *testing.T) {
		if _, err := set.New("crtb/a", nil, content(map[string]any{"a": strings.Repeat("x", set.MaxSize)})); err == nil {
			t.Error("a set with more than MaxSize bytes was made, want an error")
		}
	})
}
