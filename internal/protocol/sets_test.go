// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/protocol"
)

func content(data map[string]any) expansion.Content {
	return expansion.Content{Objects: []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x"}, "data": data,
	}}}}
}

func newSet(t *testing.T, id string, end *time.Time, c expansion.Content) protocol.Set {
	t.Helper()
	s, err := protocol.NewSet(id, end, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDigestOfASet(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	base := newSet(t, "crtb/a", &now, content(map[string]any{"a": "<1>", "b": int64(2), "c": 1.5, "d": 1.0}))
	t.Run("it survives the way through JSON", func(t *testing.T) {
		raw, err := json.Marshal(base)
		if err != nil {
			t.Fatal(err)
		}
		var got protocol.Set
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		if err := got.Check(); err != nil {
			t.Error(err)
		}
	})
	t.Run("the zone of the end does not matter", func(t *testing.T) {
		elsewhere := now.In(time.FixedZone("x", 7200))
		if got := newSet(t, "crtb/a", &elsewhere, base.Content); got.Digest != base.Digest {
			t.Error(got.Digest)
		}
	})
	t.Run("id, end and content do", func(t *testing.T) {
		later := now.Add(time.Second)
		for name, other := range map[string]protocol.Set{
			"id": newSet(t, "crtb/b", &now, base.Content), "end": newSet(t, "crtb/a", &later, base.Content),
			"no end": newSet(t, "crtb/a", nil, base.Content), "content": newSet(t, "crtb/a", &now, content(map[string]any{"a": "2"})),
		} {
			if other.Digest == base.Digest {
				t.Errorf("%s makes no difference", name)
			}
		}
	})
	t.Run("a set that is not what its digest says is refused", func(t *testing.T) {
		other := base
		other.Content = content(map[string]any{"a": "2"})
		if other.Check() == nil {
			t.Error("taken")
		}
	})
	t.Run("one that is too large is not made", func(t *testing.T) {
		if _, err := protocol.NewSet("crtb/a", nil, content(map[string]any{"a": strings.Repeat("x", protocol.MaxSet)})); err == nil {
			t.Error("made")
		}
	})
}

func TestSetIDsArePathsAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"guards", "role/cluster-owner", "crtb/a.b-c", "secrets/" + strings.Repeat("a", 253)} {
		u, err := url.Parse("http://agent" + protocol.SetPath(id))
		if err != nil || u.RawPath != "" {
			t.Errorf("%s: %v", id, err)
		}
		if got, ok := protocol.SetOfPath(u.Path); !ok || got != id {
			t.Errorf("%s became %q", id, got)
		}
	}
	for _, id := range []string{"", "/", "a/", "a/b/c", "../x", "a/..", "a/.", "A/b", "a/B", "a/b?", "a b", "a/" + strings.Repeat("a", 400)} {
		if protocol.ValidSetID(id) {
			t.Errorf("%q is taken", id)
		}
	}
}

func TestAStateIsCutToSize(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 2000)
	s := protocol.SetState{ID: long, Digest: long, Phase: protocol.SetPhase(long), Message: long, Failed: -1}
	for range 30 {
		s.Objects, s.Short = append(s.Objects, protocol.SetObject{Object: long, Message: long}), append(s.Short, long)
	}
	e := protocol.SetEvent{State: &s, Removed: long}
	e.Bound()
	raw, err := json.Marshal(e)
	if err != nil || len(raw) > protocol.MaxSetEvent || len(s.Objects) != protocol.MaxSetObjects || s.Failed != 0 {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
}

// Every report on sets is cut to size.
func FuzzSetEvent(f *testing.F) {
	for _, line := range []string{
		`{"state":{"id":"crtb/a","digest":"d","phase":"Applied","objects":[{"object":"Secret a/b","phase":"Failed","message":"m"}],"short":["a"]}}`,
		`{"removed":"crtb/a"}`, `{"synced":true}`, `{"state":null,"removed":"../x"}`, `{"state":{"id":"\ud800","failed":-1}}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var e protocol.SetEvent
		if json.Unmarshal(line, &e) != nil {
			return
		}
		e.Bound()
		raw, err := json.Marshal(e)
		if err != nil || len(raw) > protocol.MaxSetEvent {
			t.Errorf("%d bytes, %v", len(raw), err)
		}
		if e.Valid() && e.State != nil && !protocol.ValidSetID(e.State.ID) {
			t.Errorf("%q is an id", e.State.ID)
		}
	})
}

// A path that names a set names one below protocol.PathSets, and is written as it came.
func FuzzSetOfPath(f *testing.F) {
	for _, path := range []string{"/v1/sets/crtb/a", "/v1/sets/../uninstall", "/v1/sets/a%2fb", "/v1/sets//", "/v1/sets/guards", "/v1/sets/a/b\n"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		id, ok := protocol.SetOfPath(path)
		if !ok {
			return
		}
		u, err := url.Parse("http://agent" + protocol.SetPath(id))
		if err != nil || u.Path != path || u.RawPath != "" || u.RawQuery != "" || u.Host != "agent" || strings.Contains(path, "..") && u.JoinPath().Path != path {
			t.Errorf("%q became %v, %v", path, u, err)
		}
	})
}
