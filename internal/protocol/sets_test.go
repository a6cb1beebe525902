// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

func TestSetIDsNeedNoEscaping(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"guards", "role/cluster-owner", "crtb/a.b-c", "secrets/" + strings.Repeat("a", 253)} {
		u, err := url.Parse("http://agent" + protocol.SetPath(id))
		if err != nil || u.RawPath != "" {
			t.Errorf("got %[2]v for %[1]s, want a path that needs no escaping", id, err)
		}
		if got, ok := protocol.SetOfPath(u.Path); !ok || got != id {
			t.Errorf("%s became %q, want it unchanged", id, got)
		}
	}
	for _, id := range []string{"", "/", "a/", "a/b/c", "../x", "a/..", "a/.", "A/b", "a/B",
		"a/b?", "a b", "a/" + strings.Repeat("a", 400)} {
		if set.ValidID(id) {
			t.Errorf("%q was accepted, want it refused", id)
		}
	}
}

func TestSetStateIsTrimmedToItsLimits(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 2000)
	s := protocol.SetState{ID: long, Digest: long, Phase: protocol.SetPhase(long), Message: long, Failed: -1}
	for range 30 {
		s.Objects, s.Short = append(s.Objects, protocol.SetObject{Object: long, Message: long}), append(s.Short, long)
	}
	e := protocol.SetEvent{State: &s, Removed: long}
	e.Bound()
	raw, err := json.Marshal(e)
	if err != nil || len(raw) > protocol.MaxLine || len(s.Objects) != protocol.MaxSetObjects || s.Failed != 0 {
		t.Errorf("got %d bytes, %v, want at most %d, with %d objects",
			len(raw), err, protocol.MaxLine, protocol.MaxSetObjects)
	}
}

// Every report on sets is trimmed to its limits.
func FuzzSetEvent(f *testing.F) {
	for _, line := range []string{
		`{"state":{"id":"crtb/a","digest":"d","phase":"Applied",` +
			`"objects":[{"object":"Secret a/b","phase":"Failed","message":"m"}],` +
			`"short":["a"]}}`,
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
		if err != nil || len(raw) > protocol.MaxLine {
			t.Errorf("got %d bytes, %v, want at most %d", len(raw), err, protocol.MaxLine)
		}
		if e.Valid() && e.State != nil && !set.ValidID(e.State.ID) {
			t.Errorf("%q was accepted as an ID, want only valid IDs", e.State.ID)
		}
	})
}

// A path that names a set is below protocol.PathSets and is written unchanged.
func FuzzSetOfPath(f *testing.F) {
	for _, path := range []string{"/v1/sets/crtb/a", "/v1/sets/../uninstall", "/v1/sets/a%2fb", "/v1/sets//",
		"/v1/sets/guards", "/v1/sets/a/b\n"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		id, ok := protocol.SetOfPath(path)
		if !ok {
			return
		}
		u, err := url.Parse("http://agent" + protocol.SetPath(id))
		if err != nil || u.Path != path || u.RawPath != "" || u.RawQuery != "" || u.Host != "agent" ||
			strings.Contains(path, "..") && u.JoinPath().Path != path {
			t.Errorf("got %[2]v, %[3]v for %[1]q, want only the path", path, u, err)
		}
	})
}
